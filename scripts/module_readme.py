# ruff: noqa: INP001 - a script
"""Write the tables in each Terraform module's README from its variables and outputs.

``python scripts/module_readme.py`` rewrites them, ``--check`` only says whether they are current (exit 1: not).
The modules are written by this project, so a few regular expressions read them: no HCL parser is needed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MODULES = Path(__file__).resolve().parents[1] / "terraform" / "modules"
BEGIN, END = "<!-- BEGIN_TF_DOCS -->", "<!-- END_TF_DOCS -->"
BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
RESOURCE = re.compile(r'^(resource|data) "(\w+)" "(\w+)" \{', re.MULTILINE)
PROVIDER = re.compile(r'^    (\w+) = \{\n +source  = "[^"]+"\n +version = "([^"]+)"', re.MULTILINE)
HEREDOC = re.compile(r"^  description = <<-EOT\n(.*?)^  EOT", re.MULTILINE | re.DOTALL)
FIELD = r'^  {} += (".*"|[^\n]+)$'


def field(body: str, name: str) -> str | None:
    """Return one argument of a block as it is written, without the quotes of a plain string."""
    if name == "description" and (found := HEREDOC.search(body)):
        return " ".join(found.group(1).split())
    found = re.search(FIELD.format(name), body, re.MULTILINE)
    if found is None:
        return None
    text = found.group(1)
    return text[1:-1].replace('\\"', '"') if name == "description" else text


def cell(text: str) -> str:
    """Escape a table cell."""
    return text.replace("|", "\\|")


def tables(module: Path) -> str:
    """Return the tables of one module."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(module.glob("*.tf")))
    blocks = sorted(BLOCK.findall(text), key=lambda block: block[1])
    lines = ["## Requirements", "", "| Name | Version |", "|------|---------|"]
    lines += [
        "| terraform | >= 1.5.0 |",
        *(f"| {name} | {version} |" for name, version in PROVIDER.findall(text)),
        "",
        "## Resources",
        "",
        "| Name | Type |",
        "|------|------|",
    ]
    kinds = {"resource": "resource", "data": "data source"}
    lines += [f"| {kind}.{name} | {kinds[what]} |" for what, kind, name in sorted(RESOURCE.findall(text))]
    lines += ["", "## Inputs", "", "| Name | Description | Type | Default | Required |", "|------|---|---|---|:---:|"]
    for _, name, body in (block for block in blocks if block[0] == "variable"):
        default, kind = field(body, "default"), field(body, "type") or "any"
        shown = "n/a" if default is None else f"`{default}`"
        row = (name, cell(field(body, "description") or ""), f"`{kind}`", shown, "yes" if default is None else "no")
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "## Outputs", "", "| Name | Description |", "|------|-------------|"]
    outputs = (block for block in blocks if block[0] == "output")
    lines += [f"| {name} | {cell(field(body, 'description') or '')} |" for _, name, body in outputs]
    return "\n".join(lines)


def current(module: Path) -> str:
    """Return the README as it should be."""
    text = (module / "README.md").read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{tables(module)}\n{END}{after}"


def main() -> int:
    """Rewrite the tables, or check them."""
    stale = []
    for module in sorted(path for path in MODULES.iterdir() if (path / "README.md").exists()):
        wanted, path = current(module), module / "README.md"
        if path.read_text(encoding="utf-8") != wanted:
            stale.append(module.name)
            if "--check" not in sys.argv:
                path.write_text(wanted, encoding="utf-8")
    if stale:
        sys.stderr.write(f"README tables {'are stale' if '--check' in sys.argv else 'rewritten'}: {', '.join(stale)}\n")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
