from __future__ import annotations

import ast

from provisioner.node.toolkit import lay_out


def test_whatever_the_toolkit_imports_of_ours_is_laid_out_beside_it(tmp_path):
    assert lay_out(tmp_path) == tmp_path
    wanted: set[str] = set()
    for path in tmp_path.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("provisioner"):
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = {name for name in wanted if (tmp_path / name.replace(".", "/")).with_suffix(".py").exists()}
    assert "provisioner.node.card_memory" in found
    missing = {name for name in wanted if (".torch." not in name and name.count(".") == 2) and name not in found}
    assert missing <= {"provisioner.node.torch"}
