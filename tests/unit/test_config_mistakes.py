"""More than thirty ways to get failover.yaml wrong. Each gives exit code 2 and one line that says what to write."""

# ruff: noqa: E501 - the lines as the operator reads them
from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from provisioner.cli.config import config_group

RIGHT = """\
job:
  name: digits
  command: python train.py
  env: {A: "1"}
resources:
  gpus: [T4]
checkpoint:
  store: s3://my-bucket/failover
primary:
  autodl:
    mode: pro
    regions: [westDC3]
    gpus: [RTX 4090D]
    image_uuid: base-image-l2t43iu6uk
    wait: 2m
    max_price: 5 CNY
fallback:
  - aws:
      regions: [us-east-1]
      market: spot
      max_price: 1.5 USD
policy:
  ttl: 12h
"""


def edited(number: int, *lines: str) -> bytes:
    """Return RIGHT with one line replaced by others."""
    text = RIGHT.splitlines()
    text[number - 1 : number] = lines
    return ("\n".join(text) + "\n").encode()


def case(name, number, *lines, says):
    return pytest.param(edited(number, *lines), f"failover.yaml{says}", id=name)


def whole(name, content, says):
    return pytest.param(content, f"failover.yaml{says}", id=name)


MANY = "a failover.yaml is a page of text: is this the right file?"
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8)
)
CHAIN = b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (i, i, i - 1) for i in range(1, 3000))

MISTAKES = [
    case(
        "signal_that_kills",
        3,
        "  command: python train.py",
        "  stop_signal: SIGKILL",
        says=":4: job.stop_signal: no command can catch this signal; write SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2",
    ),
    case(
        "failback_as_number",
        23,
        "  failback: 3",
        says=":23: policy.failback: this is neither a word nor a section; write auto, ask or never, or its keys below it",
    ),
    case("wrong_type", 6, "  gpus: [T4]", "  count: two", says=":7: resources.count: `two` is not a whole number"),
    case(
        "number_as_text",
        6,
        "  gpus: [T4]",
        '  count: "2"',
        says=":7: resources.count: `2` is not a whole number; remove the quotes",
    ),
    case(
        "out_of_range",
        6,
        "  gpus: [T4]",
        "  count: 0",
        says=":7: resources.count: `0` is out of range; write at least 1",
    ),
    case(
        "unknown_key",
        19,
        "      regoins: [us-east-1]",
        says=":19: fallback[0].aws.regoins: unknown key; did you mean `regions`?",
    ),
    case("unknown_section", 22, "polcy:", says=":22: polcy: unknown key; did you mean `policy`?"),
    case(
        "key_without_neighbour",
        23,
        "  zzz: 1",
        says=":23: policy.zzz: unknown key; known keys are order, budget, budget_per_day, usd_cny, deadline, ttl, failback, retry_for, recoveries_per_hour, race, heartbeat, poll, lost_after, hung_after, boot_timeout, data_cache_gb",
    ),
    case(
        "missing_key",
        8,
        "  keep: 3",
        says=":7: checkpoint.store: this is missing; for example store: s3://my-bucket/failover",
    ),
    case(
        "bad_duration",
        23,
        "  ttl: 12 hours",
        says=":23: policy.ttl: `12 hours` is not a duration; write a number and a unit: 90s, 10m, 1h30m, 2d",
    ),
    case(
        "bare_number_as_duration",
        23,
        "  ttl: 3600",
        says=":23: policy.ttl: a number without its unit; write 3600s for seconds, or 10m, 1h30m, 2d",
    ),
    case(
        "sexagesimal",
        23,
        "  ttl: 12:00",
        says=":23: policy.ttl: YAML reads `12:00` as the number 720; write hours and minutes: 1h30m",
    ),
    case(
        "zero_duration",
        23,
        "  ttl: 0s",
        says=":23: policy.ttl: a duration of 0 makes no sense here; write a longer one, e.g. 10m",
    ),
    case(
        "bare_money",
        21,
        "      max_price: 1.5",
        says=":21: fallback[0].aws.max_price: an amount without its currency; write an amount and its currency: 1.5 USD or 5 CNY",
    ),
    case(
        "unknown_currency",
        21,
        "      max_price: 5 EUR",
        says=":21: fallback[0].aws.max_price: currency EUR is not known; write an amount and its currency: 1.5 USD or 5 CNY",
    ),
    case(
        "bad_money",
        21,
        "      max_price: cheap",
        says=":21: fallback[0].aws.max_price: `cheap` is not an amount of money; write an amount and its currency: 1.5 USD or 5 CNY",
    ),
    case(
        "missing_secret",
        4,
        "  secrets: [WANDB_API_KEY]",
        says=":4: job.secrets[0]: the environment variable WANDB_API_KEY is not set; export WANDB_API_KEY before you start failover",
    ),
    case(
        "secret_value_instead_of_name",
        4,
        "  secrets: [sk-live-51H8canary]",
        says=":4: job.secrets[0]: this is not the name of an environment variable; write a name such as WANDB_API_KEY, never the value (not shown here)",
    ),
    case(
        "secret_as_number",
        4,
        "  secrets: [8472910]",
        says=":4: job.secrets[0]: the value is read as a number; quote it",
    ),
    case(
        "secret_in_env",
        4,
        "  env: {WANDB_API_KEY: canary}",
        says=":4: job.env.WANDB_API_KEY: this names a secret, whose value must not stand in a file; list the name under job.secrets",
    ),
    case(
        "reserved_variable",
        4,
        '  env: {FAILOVER_EPOCH: "1"}',
        says=":4: job.env.FAILOVER_EPOCH: names that begin with FAILOVER_ are set by the node; choose another name",
    ),
    case("env_not_a_text", 4, "  env: {A: yes}", says=":4: job.env.A: the value is read as a truth value; quote it"),
    case("name_read_as_number", 2, "  name: 007", says=':2: job.name: `007` is read as a number; quote it: "007"'),
    case(
        "bad_name",
        2,
        "  name: Digits_1",
        says=":2: job.name: `Digits_1` is not a job name; use lower-case letters, digits and -, at most 32, beginning with a letter",
    ),
    case(
        "command_word_read_as_number",
        3,
        "  command: [python, train.py, --epochs, 3]",
        says=':3: job.command[3]: `3` is read as a number; quote it: "3"',
    ),
    case("empty_command", 3, '  command: ""', says=":3: job.command: the text is empty"),
    case(
        "empty_list",
        19,
        "      regions: []",
        says=":19: fallback[0].aws.regions: the list is empty; for example regions: [us-east-1]",
    ),
    case(
        "unknown_aws_region",
        19,
        "      regions: [us-esat-1]",
        says=":19: fallback[0].aws.regions[0]: AWS has no region `us-esat-1`; did you mean `us-east-1`?",
    ),
    case(
        "zone_for_region",
        19,
        "      regions: [us-east-1a]",
        says=":19: fallback[0].aws.regions[0]: `us-east-1a` is a zone; write its region, us-east-1: every zone of it is tried",
    ),
    case(
        "text_for_list",
        19,
        "      regions: us-east-1",
        says=":19: fallback[0].aws.regions: `us-east-1` is not a list; write [one, two], or one line each beginning with -",
    ),
    case(
        "unknown_instance_type",
        20,
        "      instance_types: [g4dn.xlrge]",
        says=":20: fallback[0].aws.instance_types[0]: AWS has no GPU machine type `g4dn.xlrge` (catalog of 2026-11); did you mean `g4dn.xlarge`?",
    ),
    case(
        "unknown_market",
        20,
        "      market: spot-then-ondemand",
        says=":20: fallback[0].aws.market: `spot-then-ondemand` is not one of the choices; did you mean `spot-then-on-demand`?",
    ),
    case(
        "unknown_gpu",
        6,
        "  gpus: [T4, A100-4OG]",
        says=":6: resources.gpus[1]: no GPU is called `A100-4OG`; did you mean `A100-40GB`?",
    ),
    case(
        "cuda_read_as_number",
        6,
        "  cuda: 12.4",
        says=':6: resources.cuda: this is read as a number; write major and minor in quotes: "12.4"',
    ),
    case(
        "unknown_autodl_region",
        12,
        "    regions: [westDC9]",
        says=":12: primary.autodl.regions[0]: AutoDL has no region `westDC9`; did you mean `westDC3`? its codes are westDC2, westDC3, beijingDC1, beijingDC2, beijingDC3, beijingDC4, neimengDC1, neimengDC3, foshanDC1, chongqingDC1, yangzhouDC1",
    ),
    case(
        "pro_region",
        12,
        "    regions: [westDC2]",
        says=":12: primary.autodl.regions[0]: Pro accepts only westDC3 and beijingDC2; remove westDC2, or leave the list empty",
    ),
    case(
        "pro_card",
        13,
        "    gpus: [RTX 3090]",
        says=":13: primary.autodl.gpus[0]: Pro has no `RTX 3090`; it has H800, RTX PRO 6000, RTX 5090, RTX 4090D, vGPU-32GB, vGPU-48GB, vGPU-48GB-350W",
    ),
    case(
        "card_not_at_autodl",
        13,
        "    gpus: [H100]",
        says=":13: primary.autodl.gpus[0]: AutoDL has no `H100`; it has L20, V100, V100-32GB, A100, A100-40GB, A800-80GB, H20, H800, RTX PRO 6000, RTX 5090, RTX 4090, RTX 4090D, RTX 3090, RTX 3080 Ti, RTX 3080, RTX 3080x2, RTX 3060, RTX 2080 Ti, GTX 1080 Ti, RTX A4000, RTX A5000, vGPU-32GB, vGPU-48GB, vGPU-48GB-350W, vGPU-48GB-425W",
    ),
    case(
        "unknown_mode",
        11,
        "    mode: profesional",
        says=":11: primary.autodl.mode: `profesional` is not one of the choices; write pro or elastic",
    ),
    case(
        "bad_image",
        14,
        "    image_uuid: pytorch:2.0",
        says=":14: primary.autodl.image_uuid: `pytorch:2.0` is no image of AutoDL's; write one such as base-image-l2t43iu6uk",
    ),
    case(
        "token_over_http",
        14,
        "    image_uuid: base-image-l2t43iu6uk",
        "    base_url: http://api.autodl.com",
        says=":15: primary.autodl.base_url: plain http would show AUTODL_TOKEN to the network; write https://",
    ),
    case(
        "bad_store",
        8,
        "  store: my-bucket/failover",
        says=":8: checkpoint.store: `my-bucket/failover` is not a URI; write s3://bucket/prefix, gs://bucket/prefix or file:///directory",
    ),
    case(
        "unknown_store",
        8,
        "  store: oss://my-bucket/failover",
        says=":8: checkpoint.store: no store is called `oss://`; write s3://bucket/prefix, gs://bucket/prefix or file:///directory",
    ),
    case(
        "store_with_credentials",
        8,
        "  store: s3://AKIA:canary@my-bucket/failover",
        says=":8: checkpoint.store: the URI holds credentials; remove them: they are read from environment variables",
    ),
    case(
        "relative_file_store",
        8,
        "  store: file://data",
        says=":8: checkpoint.store: `file://data` is not an absolute path; write three slashes: file:///directory",
    ),
    case(
        "file_store_for_far_machines",
        8,
        "  store: file:///srv/failover",
        says=":8: checkpoint.store: machines at AutoDL and AWS cannot reach a directory of this machine; write s3://bucket/prefix",
    ),
    case(
        "missing_workdir",
        4,
        "  workdir: nowhere",
        says=":4: job.workdir: there is no directory `nowhere`; paths begin at the directory of this file",
    ),
    case(
        "ssh_from_everywhere",
        20,
        "      ssh_cidr: 0.0.0.0/0",
        says=":20: fallback[0].aws.ssh_cidr: 0.0.0.0/0 opens SSH to the whole internet; write your own address, e.g. 203.0.113.7/32",
    ),
    case(
        "two_clouds_in_one_entry",
        21,
        "      max_price: 1.5 USD",
        "    local: {}",
        says=":18: fallback[0]: one entry names aws and local; write one of aws, gcp and local an entry, each with its own `-`",
    ),
    case(
        "impatient",
        23,
        "  lost_after: 6s",
        says=":23: policy.lost_after: 6s is less than three heartbeats; write at least 15s, or auto",
    ),
    case(
        "duplicate_key",
        4,
        "  name: other",
        says=":4: job.name: the key stands here twice, first in line 2; keep one of them",
    ),
    case("tab", 2, "\tname: digits", says=":2: a tab stands where YAML wants spaces; indent with spaces"),
    case(
        "not_yaml",
        19,
        "      regions: [us-east-1",
        says=":20: this is not YAML: expected ',' or ']', but got ':' (while parsing a flow sequence); check indentation, brackets and quotes",
    ),
    case(
        "second_document",
        22,
        "---",
        says=":22: a second document begins here; keep one job a file, without `---` between",
    ),
    case(
        "custom_tag",
        3,
        "  command: !!python/object/apply:os.system [id]",
        says=":3: job.command: the tag `!!python/object/apply:os.system` is not used here; remove it and write plain values",
    ),
    case(
        "alias_of_itself", 4, "  env: &loop {A: *loop}", says=":4: an anchor holds an alias of itself; remove the alias"
    ),
    case(
        "undefined_alias",
        3,
        "  command: *nothing",
        says=":3: this is not YAML: found undefined alias 'nothing'; quote texts that begin with *",
    ),
    case(
        "nul",
        3,
        '  command: "train\\0"',
        says=":3: job.command: the text holds a NUL character; remove it: no command line or variable can carry one",
    ),
    case(
        "surrogate",
        3,
        '  command: "\\ud800"',
        says=":3: job.command: the text holds half a character (a lone surrogate); remove the escape",
    ),
    whole(
        "missing_section", RIGHT[: RIGHT.index("fallback:")].encode(), ":1: fallback: this is missing; add fallback:"
    ),
    whole(
        "section_is_a_text",
        RIGHT.replace("resources:\n  gpus: [T4]", "resources: T4").encode(),
        ":5: resources: `T4` is not a section with keys; write its keys below it, indented",
    ),
    whole(
        "entry_without_a_cloud",
        (RIGHT[: RIGHT.index("fallback:")] + "fallback: [{}]").encode(),
        ":17: fallback[0]: one entry names no cloud; write one of aws, gcp and local an entry, each with its own `-`",
    ),
    whole("empty_file", b"", ":1: the file is empty; `failover init` writes one to begin with"),
    whole(
        "empty_block",
        RIGHT.partition("  - aws:")[0].encode() + b"  - gcp:\n",
        ":18: fallback[0].gcp: the section is empty; write below it, indented: project:, regions:",
    ),
    whole("only_a_comment", b"# later\n", ":1: the file is empty; `failover init` writes one to begin with"),
    whole("list", b"- job\n", ":1: a list stands at the top; write sections: job:, checkpoint:, fallback:"),
    whole(
        "not_a_mapping",
        b"hello\n",
        ":1: a single value stands at the top; write sections: job:, checkpoint:, fallback:",
    ),
    whole(
        "latin_1",
        RIGHT.replace("digits", "z\u00fcrich").encode("latin-1"),
        ":2: the file is not UTF-8; save it as UTF-8 in your editor",
    ),
    whole("utf_16", RIGHT.encode("utf-16"), ":1: the file is not UTF-8; save it as UTF-8 in your editor"),
    whole("control_character", b"job:\n  name: \x07\n", ":2: a character of code 7 is not allowed in YAML; remove it"),
    whole("huge", b"#" * (1 << 20) + b"\n" + RIGHT.encode(), f": the file is larger than 1 MiB; {MANY}"),
    whole("deep", b"a: " + b"[" * 5000, f":1: values are nested deeper than 40 levels; {MANY}"),
    whole("many", b"a: [" + b"x," * 20000 + b"]", f":1: the file holds more than 10000 values; {MANY}"),
    whole("aliases_that_multiply", BOMB, ":1: aliases expand to more than 10000 values; write out what is meant"),
    whole("aliases_in_a_chain", CHAIN, ":1: aliases expand deeper than 40 levels; write out what is meant"),
]


@pytest.fixture
def validate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(content, *options):
        (tmp_path / "failover.yaml").write_bytes(content)
        unset = {"WANDB_API_KEY": None, "AWS_ENDPOINT_URL": None}
        return CliRunner().invoke(config_group, ["validate", "failover.yaml", *options], env=unset)

    return run


def test_the_right_file_is_right(validate):
    result = validate(RIGHT.encode())
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "failover.yaml: valid: job digits, AutoDL then aws\n"


@pytest.mark.parametrize(("content", "line"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(validate, content, line):
    result = validate(content)
    assert result.stderr == line + "\n"
    assert result.exit_code == 2
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)  # ended by the command itself, not by a traceback
    assert "canary" not in result.output


@pytest.mark.parametrize(("content", "line"), MISTAKES)
def test_json_says_the_same(validate, content, line):
    result = validate(content, "--json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["valid"] is False
    (error,) = answer["errors"]
    place = error["file"] + (f":{error['line']}" if error["line"] else "")
    what = error["message"] + (f"; {error['hint']}" if error["hint"] else "")
    assert ": ".join(part for part in (place, error["field"], what) if part) == line


def test_all_mistakes_are_listed_in_the_order_of_the_file(validate):
    content = RIGHT.replace("2m", "2").replace("us-east-1", "us-east-11").replace("digits", "Digits")
    lines = validate(content.encode()).stderr.splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "15", "19"]


def test_a_missing_file_and_a_directory(validate, tmp_path):
    (tmp_path / "folder").mkdir()
    runner = CliRunner()
    missing = runner.invoke(config_group, ["validate", "none.yaml"])
    assert missing.stderr == "none.yaml: there is no such file; `failover init` writes one to begin with\n"
    folder = runner.invoke(config_group, ["validate", "folder"])
    assert folder.stderr == "folder: cannot be read: Is a directory\n"
    assert missing.exit_code == folder.exit_code == 2


def test_there_are_more_than_thirty_mistakes():
    assert len(MISTAKES) > 30
