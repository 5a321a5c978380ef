"""moto's instances as others see them: as a machine to boot, as facts for its metadata, as JSON for the control API."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from provisioner.sandbox.machines import Machines
from provisioner.sandbox.metadata import Facts


def script(user_data: Any) -> str:
    """Return the script in an instance's user data, which come base64-encoded and may be compressed."""
    if user_data is None:
        return ""
    raw = base64.b64decode(str(user_data))
    if raw.startswith(b"\x1f\x8b"):
        raw = gzip.decompress(raw)
    text = raw.decode("utf-8", "replace")
    if text and not text.startswith("#!"):
        return "#!/bin/bash\necho 'cloud-init: these user data are not a script, and the sandbox runs nothing else'\n"
    return text


def facts(instance: Any, user_data: str) -> Facts:
    """Return what the instance's metadata endpoint tells."""

    def role() -> str | None:
        association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
        roles = association.iam_instance_profile.roles if association is not None else []
        return roles[0].name if roles else None

    return Facts(
        instance_id=instance.id,
        region=instance.ec2_backend.region_name,
        zone=instance.availability_zone,
        instance_type=instance.instance_type,
        image_id=instance.image_id,
        private_ip=instance.private_ip or "",
        life_cycle="spot" if instance.lifecycle == "spot" else "on-demand",
        user_data=user_data,
        role=role,
        tokens_required=instance.metadata_options.http_tokens == "required",
    )


def tags(resource: Any) -> dict[str, str]:
    """Return a resource's tags."""
    return {tag["key"]: tag["value"] for tag in resource.get_tags()}


def instance_state(instance: Any, machines: Machines) -> dict[str, Any]:
    """Return one instance for the control API."""
    return {
        "id": instance.id,
        "region": instance.ec2_backend.region_name,
        "zone": instance.availability_zone,
        "type": instance.instance_type,
        "market": "spot" if instance.lifecycle == "spot" else "on-demand",
        "state": instance.state,
        "reason": getattr(instance.state_reason, "code", "") or "",
        "alive": machines.alive(instance.id),
        "launched_at": instance.launch_time.timestamp(),
        "tags": tags(instance),
    }
