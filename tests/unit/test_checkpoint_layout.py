from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.layout import Position
from provisioner.errors import ConfigError
from tests.trees import new_store


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-40", 40),
        ("ckpt_000040.npz", 40),
        ("checkpoint-500", 500),
        ("global_step1000", 1000),
        ("epoch=3-step=1200.ckpt", 1200),
        ("model-7.tar.gz", 7),
        ("0", 0),
        ("模型-12", 12),
        ("latest", None),
        ("step-40.tmp", None),
        ("step-40.partial", None),
        (".step-40", None),
        ("tmp-checkpoint-500", None),
        ("step-40-final", None),
        ("v1.5", None),
        ("step-1234567890123", None),
        ("", None),
    ],
)
def test_the_step_is_read_from_the_end_of_the_name(name, step):
    assert layout.step_of(name) == step


@given(st.builds(Position, epoch=st.integers(0, 10**6 - 1), step=st.integers(0, 10**12 - 1)))
def test_a_manifests_key_says_where_it_stands(position):
    assert layout.position(layout.manifest(position)) == position


def test_keys_that_are_no_manifests_have_no_position():
    assert layout.position("checkpoints/x.json") is None
    assert layout.position("packs/000000000001-000001.json") is None
    assert layout.position("checkpoints/000000000001-000001.json.tmp") is None
    assert layout.position("checkpoints/00000000000\N{ARABIC-INDIC DIGIT ONE}-000001.json") is None, (
        "digits of other scripts make no key"
    )


def test_a_pack_key_takes_nothing_but_the_id_of_one_and_gives_it_back():
    with pytest.raises(ValueError, match="owner"):
        layout.pack("../epochs/1/owner.json")
    identity = f"{'0a' * 16}-{'9f' * 4}"
    assert layout.pack_of(layout.pack(identity)) == identity
    for key in (f"packs/{identity}\n", f"packs/{identity.upper()}", f"packs/x/{identity}", "packs/x", identity):
        assert layout.pack_of(key) is None


def test_what_is_no_epoch_owns_nothing():
    store = new_store()
    store.put(layout.owner(7), b"{}")
    for name in ("9" * 5000, "1000000", "-8", "8x", "\N{ARABIC-INDIC DIGIT NINE}", "x"):
        store.put(f"epochs/{name}/owner.json", b"{}")
    assert epochs.newest_epoch(store) == epochs.newest_used(store) == 7


@pytest.mark.parametrize("wrong", [Position(1, -1), Position(-1, 1), Position(1, 10**12), Position(10**6, 1)])
def test_a_place_whose_key_could_not_be_read_back_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"-1|1000000"):
        layout.manifest(wrong)
