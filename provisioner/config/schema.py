"""The JSON schema of failover.yaml, for editors. ``failover init`` writes it beside the file that names it."""

from __future__ import annotations

import json
from typing import Any

from provisioner.config.models import Config

SCHEMA_NAME = "failover.schema.json"
_ID = "urn:gpu-failover:failover.yaml"


def schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12)."""
    body = Config.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": "failover.yaml",
        **{key: value for key, value in body.items() if key != "title"},
    }


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def is_ours(text: str) -> bool:
    """Say whether a file holds a schema of ours, of this version or another, which may be replaced."""
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("$id") == _ID
