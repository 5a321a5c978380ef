"""Terraform runs this: ``python -m provisioner.sandbox.stand_in``."""

from __future__ import annotations

from provisioner.sandbox.stand_in.protocol import main

main()
