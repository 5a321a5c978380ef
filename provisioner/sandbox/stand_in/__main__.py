"""Terraform runs this: ``python -m provisioner.sandbox.stand_in``."""

from __future__ import annotations

from provisioner.sandbox.stand_in.server import serve  # first: it keeps grpc from loading what nobody uses

from provisioner.sandbox.stand_in.protocol import Servicer  # isort: skip

serve(Servicer())
