"""Reading failover.yaml: values, YAML's surprises, and that every input gives a config or mistakes, nothing else."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provisioner import assets
from provisioner.config import AwsConfig, Config, ConfigMistakes, PolicyConfig, load, parse, workdir
from provisioner.config.values import duration_text, parse_duration, parse_money
from provisioner.model import Market, Money

EXAMPLE = assets.path("examples/failover.yaml")
HERE = Path()


def read(text: str, environ: dict[str, str] | None = None) -> Config:
    return parse(text.encode(), "failover.yaml", HERE, environ or {})


def mistakes_of(content: bytes) -> ConfigMistakes | None:
    try:
        parse(content, "failover.yaml", HERE, {})
    except ConfigMistakes as error:
        return error
    return None


def assert_one_line_each(error: ConfigMistakes | None) -> None:
    if error is not None:
        assert error.exit_code == 2
        assert len(str(error).splitlines()) == len(error.mistakes) > 0


SMALL = """\
job: {name: digits, command: [python, train.py]}
checkpoint: {store: "s3://my-bucket/failover"}
fallback: [{aws: {regions: [us-east-1]}}]
"""


def test_the_example_is_valid_without_any_environment():
    config = load(EXAMPLE, {})
    assert config.resources.gpus == ("V100", "T4", "L4", "A10G")
    assert config.primary is not None
    assert config.primary.autodl.wait == 120.0
    assert config.primary.autodl.max_price == Money(Decimal(5), "CNY")
    assert config.fallback[0].aws is not None
    assert config.fallback[0].aws.markets == (Market.SPOT, Market.ON_DEMAND)
    assert config.policy.budget == Money(Decimal(20), "USD")
    assert config.checkpoint.every is None  # auto


def test_the_example_shows_every_key():
    text = EXAMPLE.read_text(encoding="utf-8")
    config = load(EXAMPLE, {})
    sections = (config.job, config.resources, config.policy, config.fallback[0].aws)
    unshown = {"poll", "ami", "vpc"}
    for section in sections:
        assert section is not None
        for key in set(type(section).model_fields) - unshown:
            assert f"{key}:" in text


def test_defaults_of_a_small_file():
    config = read(SMALL)
    assert config.primary is None
    assert config.resources.gpus == ()
    assert config.policy.ttl == 12 * 3600
    assert config.policy.lost_after is None
    assert config.fallback[0].cloud == "aws"


def test_a_command_in_one_text_goes_through_bash():
    text = SMALL.replace("[python, train.py]", "python train.py && echo done")
    assert read(text).job.command == ("bash", "-c", "python train.py && echo done")


def test_names_of_gpus_become_ours():
    text = SMALL + "resources: {gpus: [NVIDIA T4, rtx-4090, a100, A100-SXM4-80GB]}\n"
    assert read(text).resources.gpus == ("T4", "RTX 4090", "A100", "A100-80GB")


@pytest.mark.parametrize("word", ["on", "no", "null", "007", "1e3", "2024-01-01", "12:30"])
def test_a_key_is_the_text_that_is_written(word):
    # YAML 1.1 reads these as a truth, nothing, numbers and a date; a variable's name is a text
    with_key = SMALL.replace("name: digits,", f'name: digits, env: {{{word}: "x"}},')
    if word in {"on", "no", "null"}:
        assert read(with_key).job.env == {word: "x"}
    else:
        with pytest.raises(ConfigMistakes, match=f"`{word}` is not a variable's name"):
            read(with_key)


def test_anchors_and_merge_keys_work_and_own_keys_win():
    text = SMALL + (
        "resources: &base {count: 2, min_vram_gb: 16}\npolicy:\n  <<: {ttl: 3h, failback: false}\n  ttl: 4h\n"
    )
    config = read(text)
    assert (config.policy.ttl, config.policy.failback.mode, config.resources.count) == (4 * 3600, "never", 2)


def test_a_block_with_nothing_behind_it_has_no_settings():
    text = SMALL.replace("[{aws: {regions: [us-east-1]}}]", "\n  - local:\n")
    text = text.replace("s3://my-bucket/failover", "file:///srv/failover")
    assert read(text).fallback[0].cloud == "local"


def test_a_directory_is_a_store_while_every_endpoint_is_this_machine():
    text = SMALL.replace("s3://my-bucket/failover", "file:///srv/failover")
    with pytest.raises(ConfigMistakes, match="machines at AWS cannot reach"):
        read(text)
    assert read(text, {"AWS_ENDPOINT_URL": "http://127.0.0.1:5000"}).checkpoint.store == "file:///srv/failover"


def test_store_keys_are_looked_for_only_when_the_file_names_them():
    read(SMALL)
    named = SMALL.replace('failover"}', 'failover", access_key_id_env: MY_KEY}')
    with pytest.raises(ConfigMistakes, match="the environment variable MY_KEY is not set"):
        read(named)
    assert read(named, {"MY_KEY": "canary"}).checkpoint.access_key_id_env == "MY_KEY"


def test_secret_values_are_in_no_value_and_no_text():
    text = SMALL.replace("name: digits,", "name: digits, secrets: [WANDB_API_KEY],")
    config = read(text, {"WANDB_API_KEY": "canary-51"})
    assert "canary" not in repr(config) + config.model_dump_json()
    with pytest.raises(ConfigMistakes) as caught:
        read(text.replace("us-east-1", "nowhere"), {"WANDB_API_KEY": "canary-51"})
    assert "canary" not in str(caught.value) + repr(caught.value.mistakes)


def test_workdir_begins_at_the_file(tmp_path):
    (tmp_path / "code").mkdir()
    file = tmp_path / "failover.yaml"
    file.write_text(SMALL.replace("name: digits,", "name: digits, workdir: code,"), encoding="utf-8")
    assert workdir(load(file, {}), file) == (tmp_path / "code").resolve()


def test_python_code_hands_over_values_and_cannot_change_them():
    aws = AwsConfig(regions=("us-east-1",), max_price=Money(Decimal("1.5"), "USD"), market="spot")
    policy = PolicyConfig(ttl=3600.0, heartbeat=0.5, lost_after=2.0)
    assert (aws.markets, policy.ttl, policy.heartbeat) == ((Market.SPOT,), 3600.0, 0.5)
    with pytest.raises(ValidationError):
        policy.ttl = 1.0


@given(st.integers(min_value=0, max_value=366 * 86_400_000))
def test_durations_survive_their_text(milliseconds):
    seconds = milliseconds / 1000
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, abs=1e-6)


@given(st.decimals(min_value="0.000001", max_value="999999999", places=6), st.sampled_from(["USD", "CNY"]))
def test_money_survives_its_text(amount, currency):
    assert parse_money(str(Money(amount, currency))) == Money(amount, currency)


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("$1.5", "1.5", "USD"),
        ("\u00a55", "5", "CNY"),
        ("\uffe55", "5", "CNY"),
        ("5 RMB", "5", "CNY"),
        ("2usd", "2", "USD"),
    ],
)
def test_money_may_be_written_as_people_do(text, amount, currency):
    assert parse_money(text) == Money(Decimal(amount), currency)


def test_the_json_of_a_config_reads_back_as_the_same():
    for config in (load(EXAMPLE, {}), read(SMALL)):
        assert Config.model_validate_json(config.model_dump_json()) == config
        as_yaml = json.dumps(config.model_dump(mode="json", exclude_defaults=True))
        assert read(as_yaml) == config  # JSON is YAML: what spec.json holds can be run again


_LINES = EXAMPLE.read_text(encoding="utf-8").splitlines()
_EDITS = st.tuples(
    st.integers(0, len(_LINES) - 1), st.integers(0, 60), st.text(st.characters(codec="utf-8"), max_size=6)
)


@given(st.lists(_EDITS, min_size=1, max_size=4), st.binary(max_size=3))
def test_no_edit_of_a_file_gives_anything_but_a_config_or_mistakes(edits, tail):
    lines = list(_LINES)
    for number, column, text in edits:
        lines[number] = lines[number][:column] + text + lines[number][column + 1 :]
    content = "\n".join(lines).encode() + tail
    assert_one_line_each(mistakes_of(content))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_PLACES = [
    ("job",), ("job", "name"), ("job", "command"), ("job", "env"), ("job", "secrets"), ("job", "steps"),
    ("resources", "gpus"), ("resources", "cuda"), ("checkpoint", "every"), ("checkpoint", "store"), ("primary",),
    ("primary", "autodl"), ("fallback",), ("fallback", 0), ("fallback", 0, "aws"), ("fallback", 0, "aws", "regions"),
    ("fallback", 0, "aws", "max_price"), ("fallback", 0, "aws", "market"), ("policy", "ttl"), ("policy", "usd_cny"),
]  # fmt: skip


@given(st.sampled_from(_PLACES), _VALUES)
def test_no_value_anywhere_gives_anything_but_a_config_or_mistakes(place, value):
    data = json.loads(load(EXAMPLE, {}).model_dump_json(exclude_defaults=True))
    spot = data
    for part in place[:-1]:
        spot = spot[part]
    spot[place[-1]] = value
    assert_one_line_each(mistakes_of(json.dumps(data).encode()))
