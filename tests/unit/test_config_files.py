"""What ``failover init`` writes, the schema that editors read, and the reference: made from one source, and current."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from provisioner import assets
from provisioner.cli import main
from provisioner.cli.config import config_group, create, init_command
from provisioner.config.reference import reference
from provisioner.config.schema import schema, schema_text


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_the_example_and_the_schema_that_it_names(here):
    result = CliRunner().invoke(init_command, [])
    assert (result.exit_code, result.stdout) == (0, "")
    text = (here / "failover.yaml").read_text(encoding="utf-8")
    assert text == assets.path("examples/failover.yaml").read_text(encoding="utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=./failover.schema.json"
    assert json.loads((here / "failover.schema.json").read_text(encoding="utf-8")) == schema()
    assert sorted(path.name for path in here.iterdir()) == ["failover.schema.json", "failover.yaml"]
    assert CliRunner().invoke(config_group, ["validate"]).exit_code == 0


def test_init_never_replaces_a_file(here, capsys):
    (here / "failover.yaml").write_text("mine", encoding="utf-8")
    assert main(["init"]) == 2
    assert (here / "failover.yaml").read_text(encoding="utf-8") == "mine"
    assert "failover.yaml is there already" in capsys.readouterr().err
    assert not (here / "failover.schema.json").exists()


def test_init_does_not_follow_a_dangling_link(here):
    (here / "failover.yaml").symlink_to(here / "elsewhere.yaml")
    assert main(["init"]) == 2
    assert not (here / "elsewhere.yaml").exists()


def test_init_renews_its_own_schema_and_leaves_another_alone(here, capsys):
    old = json.dumps({"$id": schema()["$id"], "of": "an older version"})
    (here / "failover.schema.json").write_text(old, encoding="utf-8")
    assert main(["init", "a.yaml"]) == 0
    assert (here / "failover.schema.json").read_text(encoding="utf-8") == schema_text()
    (here / "failover.schema.json").write_text("{}", encoding="utf-8")
    assert main(["init", "b.yaml"]) == 2
    assert "is not ours" in capsys.readouterr().err
    assert not (here / "b.yaml").exists()


def test_init_into_a_directory_that_is_not_there(here, capsys):
    assert main(["init", "none/failover.yaml"]) == 2
    assert capsys.readouterr().err == "failover: none/failover.yaml cannot be written: No such file or directory\n"


def test_create_leaves_nothing_behind_when_the_name_is_taken_meanwhile(here):
    create(here / "a", "first")
    with pytest.raises(FileExistsError):
        create(here / "a", "second")
    assert [path.name for path in here.iterdir()] == ["a"]
    assert (here / "a").read_text(encoding="utf-8") == "first"


def test_config_schema_prints_the_schema_and_nothing_else():
    result = CliRunner().invoke(config_group, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["additionalProperties"] is False


def test_every_key_of_the_schema_has_a_description():
    for section in [schema(), *schema()["$defs"].values()]:
        for name, field in section["properties"].items():
            assert field.get("description"), name


def test_schema_beside_the_example_is_current():
    stored = assets.path("examples/failover.schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(), "run: failover config schema > examples/failover.schema.json"


def test_reference_is_current():
    stored = (assets.path("examples").parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert stored == reference(), "run: python -m provisioner.config.reference > docs/configuration.md"


def test_mistakes_leave_main_as_one_line_each(here, capsys):
    (here / "failover.yaml").write_text("job: 1\n", encoding="utf-8")
    assert main(["config", "validate"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(": ")[1] for line in captured.err.splitlines()] == ["checkpoint", "fallback", "job"]


def test_the_commands_load_without_pydantic_and_yaml():
    code = (
        "import sys, provisioner.cli.config, provisioner.cli.plan;"
        "print(sorted({'pydantic', 'yaml', 'rich', 'boto3', 'provisioner.catalog'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ)
    )
    assert answer.stdout == "[]\n"
