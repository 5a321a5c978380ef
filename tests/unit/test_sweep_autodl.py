"""A sweep at AutoDL, where a machine's name carries its tags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import JobRef
from provisioner.sandbox.autodl import Fault
from tests.unit.test_autodl_cloud import LAUNCH, Setting


@pytest.mark.parametrize("mode", ["pro", "elastic"])
def test_machines_of_every_job_are_listed_with_age_and_price_and_go_one_by_one(mode: str) -> None:
    setting = Setting(mode)
    mine = setting.claim()
    setting.sleep(3600.0)
    theirs = setting.claim(replace(LAUNCH, job=JobRef("other", "99999999")))
    found = {one.thing.id: one for one in setting.cloud.tagged(()).found}
    assert {one.thing.job: one.uid for one in found.values()} == {"digits": "1a2b3c4d", "other": "99999999"}
    since = found[mine.id].since
    assert since is not None
    assert setting.now - since == pytest.approx(3600.0, abs=120.0)
    assert found[mine.id].thing.price_per_hour is not None
    setting.cloud.remove(found[mine.id])
    assert [one.thing.id for one in setting.cloud.tagged(()).found] == [theirs.id]


def test_a_list_that_is_refused_is_named_and_hides_no_other() -> None:
    setting = Setting()
    node = setting.claim()
    setting.emulator.add_fault(Fault("status", "/api/v1/dev/deployment*", count=9, status=500))
    answer = setting.cloud.tagged(())
    assert [one.thing.id for one in answer.found] == [node.id]
    assert list(answer.silent) == ["deployments"]
