"""This machine as a cloud: a node is a process here, with whatever cards are here."""

from __future__ import annotations

from provisioner.clouds.local.cloud import LocalCloud

__all__ = ["LocalCloud"]
