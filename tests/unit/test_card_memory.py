from __future__ import annotations

import pytest

from provisioner.node.card_memory import Neighbours
from tests.played_nvml import PlayedNvml

GIB = 2**30


def neighbours(nvml, times=(), **options):
    clock = iter(times)
    return Neighbours(nvml, "card 0", lambda: {11}, monotonic=lambda: next(clock), **options)


def test_a_blip_shorter_than_the_window_is_not_told_and_one_that_lasts_is():
    nvml = PlayedNvml()
    card = neighbours(nvml, times=(0, 8, 20, 29, 30), window_s=10)
    told = []
    for foreign in (0, 9, 9, 0, 9, 9, 9):
        nvml.memory = {11: 4 * GIB, 99: foreign * GIB}
        told.append(card.look())
    assert told == [""] * 6 + ["other processes hold 9.0 GiB, the job 4.0 GiB"]


def test_an_error_in_between_neither_tells_nor_begins_the_window_anew():
    nvml = PlayedNvml()
    card = neighbours(nvml, times=(0, 10), window_s=10)
    nvml.memory = {11: 4 * GIB}
    assert card.look() == ""
    nvml.memory = {11: 4 * GIB, 99: 9 * GIB}
    assert card.look() == ""
    nvml.broken = 999
    with pytest.raises(nvml.NVMLError):
        card.look()
    nvml.broken = 0
    assert "9.0 GiB" in card.look()


def test_where_the_driver_lists_no_process_of_ours_all_but_our_own_bytes_is_foreign():
    nvml, own = PlayedNvml(), [4 * GIB]
    nvml.is_namespaced = True
    card = neighbours(nvml, times=(0,), window_s=0, own_bytes=lambda: own[0])
    for own[0], context in ((4 * GIB, GIB), (16 * GIB, GIB)):
        nvml.memory = {11: own[0] + context}
        assert card.look() == "", own
    nvml.memory = {11: 5 * GIB, 99: 8 * GIB}
    own[0] = 4 * GIB
    assert card.look() == "other processes hold 9.0 GiB, the job 4.0 GiB"
    nvml.memory = {99: 20 * GIB}
    assert neighbours(nvml).look() == "", "nobody tells what is ours"
