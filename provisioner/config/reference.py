"""Write docs/configuration.md from the models: ``python -m provisioner.config.reference > docs/configuration.md``."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from provisioner.config.checkpoint import CheckpointConfig, KeepBestConfig, StoreConfig
from provisioner.config.data import DataConfig
from provisioner.config.failback import FailbackConfig
from provisioner.config.fit import FitConfig, LineConfig, PassesConfig
from provisioner.config.models import (
    Config,
    EstimateConfig,
    ImageLoginConfig,
    JobConfig,
    PolicyConfig,
    ResourcesConfig,
)
from provisioner.config.places import (
    AutodlConfig,
    AwsConfig,
    FallbackConfig,
    GcpConfig,
    LocalConfig,
    PrepaidConfig,
    PrimaryConfig,
)
from provisioner.config.terraform import TerraformConfig

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("job", JobConfig),
    ("job.image_login", ImageLoginConfig),
    ("job.estimate", EstimateConfig),
    ("job.fit", FitConfig),
    ("job.fit.ways.NAME", PassesConfig),
    ("job.fit.ways.NAME.moved", LineConfig),
    ("resources", ResourcesConfig),
    ("checkpoint", CheckpointConfig),
    ("checkpoint.keep_best", KeepBestConfig),
    ("checkpoint.replicas[]", StoreConfig),
    ("data[]", DataConfig),
    ("primary", PrimaryConfig),
    ("primary.autodl", AutodlConfig),
    ("primary.autodl.prepaid", PrepaidConfig),
    ("fallback[]", FallbackConfig),
    ("fallback[].aws", AwsConfig),
    ("fallback[].gcp", GcpConfig),
    ("fallback[].local", LocalConfig),
    ("terraform", TerraformConfig),
    ("policy", PolicyConfig),
    ("policy.failback", FailbackConfig),
)

_INTRODUCTION = """\
# failover.yaml

<!-- Made by `python -m provisioner.config.reference`; a test fails when it is not current. -->

`failover init` writes a commented file to begin with and its JSON schema beside it, which editors read offline.
`failover config validate FILE` checks a file without touching a cloud: exit code 0, or 2 and one line for each mistake,

    failover.yaml:12: fallback[0].aws.regions[0]: AWS has no region `us-esat-1`; did you mean `us-east-1`?

(with `--json`: `{"valid": false, "errors": [{"file", "line", "field", "message", "hint"}]}`).

- **Durations** have a unit: `90s`, `10m`, `1h30m`, `2d`. Bare numbers are refused.
- **Money** has a currency: `1.5 USD`, `5 CNY`, also `$1.5`, `¥5`. Prices are for an hour, in the currency of the cloud;
  `policy.usd_cny` compares them.
- **Secrets** are named, never written: each name under `job.secrets` must be set in the environment.
- **Texts that YAML takes for something else** must be quoted: `"007"`, `"yes"`, `"12.4"`. The error says which.
- Unknown keys, keys that stand twice, several documents, and files over 1 MiB are refused. Anchors and `<<` work.
- Lists are tried in the order of cost, not in their own, except `fallback`, whose order is the order of tries unless
  `policy.order` says otherwise.
"""

_RANKING = """\
## How machines are ranked

1. The zone that lost the newest machine comes last of all.
2. With `policy.deadline` and `job.estimate.time`: what is not expected to make it comes behind what is; and how much
   spot the deadline allows ([Spot under a deadline](planner.md#spot-under-a-deadline)).
3. Zones that lost a machine within the last hour come behind the others, the later the farther.
4. The primary first, then the entries of `fallback` in the order of the file; with `policy.order: cost` the offers of
   all entries together.
5. Zones that a cloud named as having room, when it refused the same machine type and market in another.
6. Inside a place, regions that lost a machine within the last hour come last.
7. By what the job is expected to cost until it is done; then what only `max_price` bounds; then what nobody knows the
   price or the speed of. [How that is reckoned](planner.md).
8. Of equal offers, the region that is nearer to the store.
9. Zones in turn over the regions.

What a cloud refused is left alone for a time that depends on why, as far as the refusal reaches: one offer, a machine
type in a zone, a zone, what one quota counts, a market of a region, a region, or the account.

Nothing goes over `max_price`. AWS itself holds spot machines to it. Where the catalog knows no on-demand price, the
machine is passed over when there is a `max_price`, since it could not be kept. `failover plan` shows the ranking with
its reasons, `failover plan --why CLOUD/ZONE/TYPE` one offer with its numbers.
"""


def reference() -> str:
    """Return the text of docs/configuration.md."""
    parts = [_INTRODUCTION, "## Sections\n", _table(Config, sections=True)]
    for name, model in _SECTIONS:
        parts.append(f"## `{name}`\n")
        parts.append(inspect.cleandoc(model.__doc__ or "") + "\n")
        if model.model_fields:
            parts.append(_table(model))
    parts.append(_RANKING)
    return "\n".join(parts)


def _table(model: type[BaseModel], *, sections: bool = False) -> str:
    schema = model.model_json_schema()
    rows = ["| key | written as | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        key = field.alias or name
        kind = _kind(schema["properties"][key], schema) if not sections else "section"
        cells = (f"`{key}`", kind, _default(model, name, field), _meaning(field))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _meaning(field: FieldInfo) -> str:
    text = field.description or ""
    if not field.examples:
        return text
    example = field.examples[0]
    if isinstance(example, list):
        example = f"[{', '.join(example)}]"
    if isinstance(example, dict):
        example = ", ".join(
            f'{key}: "{one}"' if isinstance(one, str) else f"{key}: {one}" for key, one in example.items()
        )
    return f"{text} Example: `{example}`."


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "none" if field.default_factory is dict else "its defaults"
    value = model.model_construct().model_dump(mode="json", include={name}, warnings=False)[name]
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(schema: dict[str, Any], root: dict[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_kinds(schema, root)))


def _kinds(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield "section"
    elif "anyOf" in schema:
        for inner in schema["anyOf"]:
            if inner.get("type") != "null":
                yield from _kinds(inner, root)
    elif "enum" in schema or "const" in schema:
        words = schema.get("enum", [schema.get("const")])
        yield " or ".join(f"`{word if isinstance(word, str) else json.dumps(word)}`" for word in words)
    elif schema.get("type") == "array":
        yield "list of " + " or ".join(f"{kind}s" for kind in dict.fromkeys(_kinds(schema.get("items", {}), root)))
    elif schema.get("type") == "object":
        yield f"`NAME: {next(_kinds(schema.get('additionalProperties', {'type': 'string'}), root))}`"
    else:
        yield _plain_kind(schema)


def _plain_kind(schema: dict[str, Any]) -> str:
    examples = "".join(str(example) for example in schema.get("examples", []))
    if "CNY" in examples:
        return "money"
    if "auto" in schema.get("pattern", ""):
        return "`auto` or duration"
    if "1h30m" in examples:
        return "duration"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names[schema["type"]]


if __name__ == "__main__":
    sys.stdout.write(reference())
