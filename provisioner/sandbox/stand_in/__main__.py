"""Terraform runs this: ``python -m provisioner.sandbox.stand_in PROVIDER``.

``PROVIDER`` is ``aws``, ``google``, or the path of a schema that is to be served with no cloud behind it.
"""

from __future__ import annotations

from provisioner.sandbox.stand_in.server import serve  # first: it keeps grpc from loading what nobody uses

import sys  # isort: skip
from importlib import import_module  # isort: skip
from pathlib import Path  # isort: skip

from provisioner.sandbox.stand_in import schema_alone  # isort: skip
from provisioner.sandbox.stand_in.protocol import Servicer  # isort: skip

name = sys.argv[1]
if name.endswith(".json"):
    provider = schema_alone(Path(name))
else:
    provider = import_module(f"provisioner.sandbox.stand_in.{name}").PROVIDER
serve(Servicer(provider))
