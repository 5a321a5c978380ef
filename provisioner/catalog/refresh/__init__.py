"""Ask the clouds what they sell now, and where and at what price. Each cloud has a file; none is imported unasked."""

from __future__ import annotations

from provisioner.catalog.refresh.found import Done, Found, Missed

__all__ = ["Done", "Found", "Missed"]
