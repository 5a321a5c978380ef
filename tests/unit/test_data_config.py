"""What failover.yaml may say of data, and what it is told where it may not."""

from __future__ import annotations

import pytest

from provisioner import assets
from provisioner.config import ConfigMistakes, parse

BASE = 'job: {name: digits, command: "true"}\ncheckpoint: {store: "file:///tmp/x"}\nfallback: [{local: {}}]\ndata:\n'


def told(line, tmp_path, base=BASE):
    try:
        return parse(f"{base}{line}\n".encode(), "failover.yaml", tmp_path, {}).data
    except ConfigMistakes as error:
        return str(error)


def test_a_folder_a_file_and_an_archive_are_taken(tmp_path):
    lines = (
        "- {from: 's3://bucket/a/', to: a}\n- {from: 'gs://bucket/b.tar', to: b, unpack: true}\n"
        f"- {{from: 'https://example.com/c?download=1', to: c, sha256: {'a' * 64}}}\n- {{from: 'file:///d', to: d}}"
    )
    folder, archive, web, here = told(lines, tmp_path)
    assert (folder.is_folder, folder.store.uri) == (True, "s3://bucket/a")
    assert (archive.is_folder, archive.store.uri) == (False, "gs://bucket")
    assert web.shown == "https://example.com/c"
    assert here.scheme == "file"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{form: 's3://bucket/a/', to: a}", "5: data[0].form: unknown key; did you mean `from`?"),
        ("{to: a}", "5: data[0].from: this is missing; for example from: s3://my-bucket/digits/"),
        ("{from: 's3://bucket/a/', to: ../a}", "5: data[0].to: `../a` is not a folder's name; use letters"),
        ("{from: 's3://bucket', to: a}", "5: data[0].from: `s3://bucket` names no folder and no file; write s3://"),
        ("{from: 's3://bucket/a/', to: a, unpack: true}", "5: data[0]: unpack goes with one file"),
        ("{from: 's3://bucket/a', to: a, unpack: true}", "5: data[0].unpack: `s3://bucket/a` is no archive by its"),
        ("{from: 'https://example.com/', to: a}", "5: data[0].from: a web server gives no list of its files; name"),
        ("{from: 'http://example.com/x', to: a}", "5: data[0]: plain http proves nothing about what comes; write"),
        ("{from: 'https://example.com/x?sig=canary', to: a}", "5: data[0].from: the URL carries a signature or a"),
        ("{from: 'https://me:canary@example.com/x', to: a}", "5: data[0].from: the address holds credentials"),
        ("{from: 'ftp://example.com/x', to: a}", "5: data[0].from: no data comes from `ftp://`; write s3://"),
        (
            "{from: 's3://bucket/a', to: a, access_key_id_env: UNSET}",
            "5: data[0].access_key_id_env: the environment var",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place_and_the_way_out(entry, says, tmp_path):
    line = told(f"- {entry}", tmp_path)
    assert line.startswith(f"failover.yaml:{says}")
    assert line.count("\n") == 0
    assert "canary" not in line


def test_entries_do_not_get_into_each_others_way(tmp_path):
    lines = "- {from: 's3://bucket/a/', to: a}\n- {from: 's3://bucket/b/', to: a}\n- {from: 's3://bucket/a/', to: c}"
    assert told(lines, tmp_path).splitlines() == [
        "failover.yaml:6: data[1].to: data[0] goes to `a` too; give each its own folder",
        "failover.yaml:7: data[2].from: this is data[0] once more; keep one",
    ]


def test_a_folder_of_this_machine_is_out_of_reach_for_others(tmp_path):
    base = BASE.replace("file:///tmp/x", "s3://bucket/p").replace("{local: {}}", "{aws: {regions: [us-east-1]}}")
    says = "data[0].from: machines at AWS cannot reach a folder of this machine; copy it into a bucket"
    assert says in told("- {from: 'file:///d', to: d}", tmp_path, base)


def test_the_example_is_valid_but_for_what_only_its_reader_has():
    path = assets.path("examples/with-data.yaml")
    config = parse(path.read_bytes(), str(path), path.parent, {})
    assert [entry.to for entry in config.data] == ["images", "labels"]
    assert config.policy.data_cache_gb == 100
