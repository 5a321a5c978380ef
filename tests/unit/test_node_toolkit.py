from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import provisioner.node.torch as toolkit
from provisioner.node.toolkit import lay_out


def test_whatever_the_toolkit_imports_of_ours_is_laid_out_beside_it(tmp_path):
    assert lay_out(tmp_path) == tmp_path
    wanted: set[str] = set()
    for path in tmp_path.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("provisioner"):
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = {name for name in wanted if (tmp_path / name.replace(".", "/")).with_suffix(".py").exists()}
    assert {"provisioner.node.card_memory", "provisioner.fitting"} <= found
    ours = {name for name in wanted if ".torch." not in name and name.count(".") == 2}
    missing = {name for name in ours - found if name.rpartition(".")[0] not in found}
    assert missing <= {"provisioner.node.torch"}


def test_importing_the_node_and_what_of_the_toolkit_needs_no_torch_imports_none(tmp_path):
    """Also out of the copy that the training sees, which is typed as the original is."""
    lay_out(tmp_path)
    assert (tmp_path / "provisioner" / "py.typed").exists()
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not to be imported')")
    text = (
        "import provisioner.node, provisioner.node.torch.files, provisioner.node.torch.surroundings\n"
        "import provisioner.node.torch as toolkit\n"
        "assert 'checkpointing' in dir(toolkit)\n"
        "try:\n    toolkit.chekpointing\n"
        "except AttributeError as error:\n    print(toolkit.__file__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(tmp_path) in done.stdout, done.stderr
    assert "no attribute 'chekpointing'" in done.stdout


def test_the_toolkits_names_are_told_to_type_checkers_and_no_module_takes_a_names_place():
    here, homes = Path(toolkit.__file__).parent, vars(toolkit)["_HOMES"]
    told = {
        alias.name
        for node in ast.walk(ast.parse((here / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("provisioner")
        for alias in node.names
    }
    assert told == set(toolkit.__all__) == set(homes)
    for name, home in homes.items():
        assert name in (here / f"{home}.py").read_text()
        assert not (here / f"{name}.py").exists()
