"""Which AWS account: told without asking AWS, and without boto3."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def account_name(environ: Mapping[str, str]) -> str:
    """Tell accounts apart: a digest of the key's id, or the profile, and the endpoint if it is not AWS's. No secret."""
    key, profile = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_PROFILE")
    name = f"key {hashlib.sha256(key.encode()).hexdigest()[:8]}" if key else f"profile {profile or 'default'}"
    endpoint = environ.get("AWS_ENDPOINT_URL")
    return f"{name} at {endpoint}" if endpoint else name
