"""The rules that `policy.py` compares: when to have a spot machine, one on demand, or none, and in which zone.

Ours is `provisioner.planner.deadline`, which `failover run` goes by. The others are written anew from what they do.

Uniform Progress ("Can't Be Late", Wu et al., NSDI 2024, section 5.2) follows a straight line from nothing to all of
the work at the deadline. Its published simulator (strategy ``rc_cr_threshold`` of package ``sky_spot``) does at each
sample:

- spot where it is there; without it, on demand when behind the line, else nothing;
- a machine on demand is kept while there is no spot, and while the job is not ahead of the line as it will be two
  starts later (the hysteresis);
- the net: without a machine, or on demand, the job is (or stays) on demand when what is left of the work and two
  starts, rounded up to samples, fill the time that is left; with one start only a spot machine that trains is kept.

The text reads otherwise in one point: it ends the machine on demand as soon as the job is that far ahead, spot or not.
The simulator's ``rc_cr_threshold_no_condition2`` leaves on demand for spot at once, without the hysteresis.

SkyPilot's managed jobs (``sky/jobs/recovery_strategy.py``, read at commit 027bbcdb) know no deadline and, with
``use_spot``, no machine on demand. A lost job goes:

- FAILOVER: three tries in the region that took its machine, 60 s and more apart, then anywhere, cheapest first, again
  and again with pauses that grow to 5 min.
- EAGER_NEXT_REGION, the default: one round of three tries that leaves that region out, then anywhere. So says its text.
  As it stands the round is skipped, since it is made only where the *launched* resources name no region, and they
  always do: then it is anywhere at once, cheapest first. Both are played.

Here prices are equal, so the cheapest is the first zone of the list. The tries of a round fall into one sample: all of
a round is asked without delay, and a new round at each sample, which is in SkyPilot's favour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.policy_world import ENOUGH, NOTHING, ON_DEMAND, Have, Job, Policy
from provisioner.hazard import Seen
from provisioner.planner.deadline import Markets


def spot(job: Job, order: Sequence[int] = ()) -> Have:
    """Return a spot machine in the first zone of ``order`` (all, as listed) that has one; nothing without one."""
    return next((Have("spot", zone) for zone in order or range(len(job.free)) if job.free[zone]), NOTHING)


def ours(job: Job) -> Have:
    """Ask the planner. Of several zones the one with the fewest losses an hour; the one that took a machine last."""
    course, mode = job.course, job.have.mode
    if mode == "spot":
        return job.have
    order = sorted(range(len(job.free)), key=lambda zone: (zone == job.lost, job.seen.get(zone, Seen()).rate, zone))
    found = spot(job, order)
    if mode == "od":
        if job.have.beside >= 0:
            return job.have
        back = job.way_back and job.boot <= ENOUGH and found.mode and course.back_to_spot
        return Have("od", beside=found.zone) if back else ON_DEMAND
    if course.markets is Markets.ON_DEMAND:
        return ON_DEMAND
    return found if found.mode or course.markets is Markets.SPOT else ON_DEMAND


def no_way_back(job: Job) -> Have:
    """Ask the planner, and stay on demand."""
    job.way_back = False
    return ours(job)


def uniform(job: Job, *, text: bool = False, hysteresis: bool = True) -> Have:
    """Follow the line, as the published code does; ``text``: as the paper's text has it."""
    mode, pace = job.have.mode, job.work / job.deadline
    wanted = job.have if mode == "spot" else spot(job)
    if not wanted.mode and job.done < job.at * pace - ENOUGH:
        wanted = ON_DEMAND
    if mode == "od":
        behind = hysteresis and job.done <= (job.at + 2 * job.start) * pace + ENOUGH
        if behind or (not text and not job.there):
            wanted = ON_DEMAND
    left = math.floor(round((job.deadline - job.at) / job.gap, 6))
    one, two = (math.ceil(round((job.work - job.done + starts * job.start) / job.gap, 6)) >= left for starts in (1, 2))
    if (two and mode != "spot") or (one and (mode != "spot" or job.boot > ENOUGH)):
        return ON_DEMAND
    return wanted


def uniform_text(job: Job) -> Have:
    """Follow the line, as the paper's text has it."""
    return uniform(job, text=True)


def uniform_plain(job: Job) -> Have:
    """Follow the line without the hysteresis."""
    return uniform(job, hysteresis=False)


def greedy_with_net(job: Job) -> Have:
    """Idle without spot, and go on demand for good when there is no more time."""
    if job.have.mode:
        return job.have
    left = job.deadline - job.at - (job.work - job.done) - job.gap
    return ON_DEMAND if left < 2 * job.start else spot(job)


def spot_alone(job: Job) -> Have:
    """Take spot alone."""
    return job.have if job.have.mode else spot(job)


def first_loss(job: Job) -> Have:
    """Take spot, and go on demand for good when there is none."""
    if job.have.mode:
        return job.have
    found = spot(job)
    return found if found.mode else ON_DEMAND


def on_demand(_job: Job) -> Have:
    """Take no spot machine."""
    return ON_DEMAND


def _after_loss(job: Job, *, same_region: bool) -> Have:
    """Recover in the region that took the machine first, or last."""
    if job.have.mode:
        return job.have
    if job.lost < 0:
        return spot(job)
    region = job.regions[job.lost]
    first = [zone for zone, of in enumerate(job.regions) if (of == region) is same_region]
    return spot(job, [*first, *(zone for zone in range(len(job.regions)) if zone not in first)])


def sky_failover(job: Job) -> Have:
    """SkyPilot's FAILOVER."""
    return _after_loss(job, same_region=True)


def sky_eager(job: Job) -> Have:
    """SkyPilot's EAGER_NEXT_REGION, as its text says."""
    return _after_loss(job, same_region=False)


ONE_ZONE: dict[str, Policy] = {
    "**ours**": ours,
    "ours, no way back": no_way_back,
    "uniform progress": uniform,
    "uniform progress, by the paper's text": uniform_text,
    "uniform progress, no hysteresis": uniform_plain,
    "greedy with a net": greedy_with_net,
    "on demand at the first loss": first_loss,
    "spot alone": spot_alone,
    "on demand alone": on_demand,
}
"""Spot in one zone."""

ALL_ZONES: dict[str, Policy] = {
    "**ours**": ours,
    "ours, no way back": no_way_back,
    "uniform progress, any zone": uniform,
    "SkyPilot FAILOVER": sky_failover,
    "SkyPilot EAGER_NEXT_REGION": sky_eager,
    "SkyPilot EAGER_NEXT_REGION, as it runs": spot_alone,
    "on demand alone": on_demand,
}
"""Spot in every zone."""
