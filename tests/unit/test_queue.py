"""The queue's rows and its ledger: each change once, whoever races for it; machines and money counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from provisioner.cli.command import cli
from provisioner.config import Config, parse
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.ledger import bill_of
from provisioner.controller.limits import Limits
from provisioner.controller.records import Begun, Choice
from provisioner.controller.serving.by_hand import submit
from provisioner.controller.serving.database import Database
from provisioner.controller.serving.guarded import guarded
from provisioner.controller.serving.job import ServedJob, Serving, _within
from provisioner.controller.serving.jobs import JobStore, QueuedJob, State, Wish
from provisioner.controller.serving.locks import FileLocks, number
from provisioner.controller.serving.seats import Seats
from provisioner.errors import CloudError, ConfigError, LimitReached
from provisioner.model import Failure, Gpu, JobRef, Launch, Market, Money, Node, Offer
from tests import postgres

FILE = b"""
job: {name: digits, command: [python, train.py]}
checkpoint: {store: "file:///tmp/store"}
fallback: [{local: {}}]
policy: {budget: 10 USD}
"""
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p5", Gpu("H100", 8, 80), Market.SPOT, Money(Decimal(6), "USD"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if postgres.why_not():
        pytest.skip(postgres.why_not())
    with postgres.cluster() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    found = {"FAILOVER_STATE_DIR": str(tmp_path / "state")}
    if request.param == "postgresql":
        found["FAILOVER_DATABASE_URL"] = request.getfixturevalue("url")
    return found


@pytest.fixture
def store(environ: dict[str, str]) -> Iterator[JobStore]:
    made = JobStore(Database(environ))
    yield made
    made.close()


def row(store: JobStore) -> QueuedJob:
    found = store.get("digits")
    assert found is not None
    return found


def at_once(count: int, call) -> list:
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(call(n))) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == count
    return answers


def test_many_submit_and_take_one_job_at_the_same_time_and_one_does(store: JobStore) -> None:
    assert sorted(at_once(8, lambda n: store.submit("digits", "f.yaml", FILE)))[-2:] == [False, True]
    job = row(store)
    assert sum(at_once(8, lambda n: store.take(job, f"controller{n}", "v"))) == 1
    taken = row(store)
    assert taken.state is State.RUNNING
    assert sum(at_once(8, lambda n: store.take(taken, f"other{n}", "v"))) == 1, "one takes over"


def test_what_the_operator_wants_is_done_at_once_or_kept_for_the_controller(store: JobStore) -> None:
    assert store.pause("digits") is None
    store.submit("digits", "f.yaml", FILE)
    assert store.pause("digits") is State.PAUSED
    assert not store.submit("digits", "f.yaml", FILE), "a paused job is in the queue"
    assert store.resume("digits") is State.QUEUED
    store.take(row(store), "me", "v")
    assert store.pause("digits") is State.RUNNING
    assert store.cancel("digits", gently=True) is State.RUNNING
    assert store.pause("digits") is None, "a cancelled job is not paused"
    assert row(store).wish is Wish.CANCEL
    store.end("digits", "somebody else", State.DONE, "")
    assert row(store).state is State.RUNNING, "only who has it says how it ended"
    store.end("digits", "me", State.CANCELLED, "")
    assert (store.cancel("digits", gently=True), store.resume("digits")) == (State.CANCELLED, None)


def test_a_controller_is_not_shown_again_what_it_runs_until_somebody_wants_something_of_it(store: JobStore) -> None:
    for name in ("mine", "theirs", "waits", "over"):
        store.submit(name, f"{name}.yaml", FILE)
    for name, controller in (("mine", "us"), ("theirs", "them"), ("over", "us")):
        assert (job := store.get(name)) is not None
        assert store.take(job, controller, "flow-1")
    store.end("over", "us", State.DONE, "")

    def shown(*aside: str) -> list[str]:
        return [job.name for job in store.to_look_at("us", aside)]

    assert shown() == ["theirs", "waits"]
    assert shown("mine", "over") == ["mine", "theirs", "waits"]
    store.pause("mine")
    assert shown() == ["mine", "theirs", "waits"]


def test_two_state_roots_in_one_database_do_not_see_each_others_jobs(url: str, tmp_path: Path) -> None:
    shared = {"FAILOVER_DATABASE_URL": url}
    one, two = (JobStore(Database({**shared, "FAILOVER_STATE_DIR": str(tmp_path / name)})) for name in "ab")
    assert one.submit("digits", "f.yaml", FILE)
    assert two.get("digits") is None
    assert two.submit("digits", "f.yaml", FILE)
    assert two.cancel("digits", gently=True) is State.CANCELLED
    assert row(one).state is State.QUEUED
    assert {job.root for job in two.jobs(all_roots=True)} >= {one.root, two.root}
    assert number(row(one).key) != number(row(two).key)
    one.close()
    two.close()


def test_a_job_is_in_one_queue_only(url: str, tmp_path: Path) -> None:
    here = {"FAILOVER_STATE_DIR": str(tmp_path / "state")}
    one, two = JobStore(Database(here)), JobStore(Database({**here, "FAILOVER_DATABASE_URL": url}))
    path = tmp_path / "f.yaml"
    path.write_bytes(FILE)
    config = parse(FILE, "f.yaml", tmp_path, {})
    submit(one, path, FILE, config)
    with pytest.raises(ConfigError, match=r"was submitted to .*jobs\.sqlite"):
        submit(two, path, FILE, config)
    one.cancel("digits", gently=True)
    submit(two, path, FILE, config)
    with pytest.raises(ConfigError, match="was submitted to postgresql"):
        submit(one, path, FILE, config)
    (tmp_path / "other").symlink_to(tmp_path / "state")
    renamed = JobStore(Database({"FAILOVER_STATE_DIR": str(tmp_path / "other"), "FAILOVER_DATABASE_URL": url}))
    with pytest.raises(ConfigError, match="is in the queue already"):
        submit(renamed, path, FILE, config)
    assert two.database.marked_by(str(two.database).replace("failover:***@", "other@") + "?sslmode=disable")
    for store in (one, two, renamed):
        store.close()


def test_a_queue_of_another_release_is_said_to_be_one(tmp_path: Path) -> None:
    database = Database({"FAILOVER_STATE_DIR": str(tmp_path)})
    store = JobStore(database)
    store.submit("digits", "f.yaml", FILE)
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE failover_jobs SET state = 'FROZEN'"))
    with pytest.raises(CloudError, match="FROZEN"):
        store.get("digits")
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE failover_jobs DROP COLUMN not_before"))
    store.close()
    with pytest.raises(CloudError, match="not_before") as caught:
        JobStore(database)
    assert "jobs.sqlite" in caught.value.hint


def test_a_limit_holds_when_all_ask_at_once_and_a_token_is_booked_once(store: JobStore) -> None:
    seats = Seats(store, {"aws/many": 3, "aws/other": 0})
    answers = at_once(8, lambda n: seats.book(f"job{n}", f"token{n}", "aws", "many"))
    assert sorted(bool(full) for full in answers) == [False] * 3 + [True] * 5
    booked = next(n for n in range(8) if not seats.book(f"job{n}", f"token{n}", "aws", "many"))
    seats.free(f"token{booked}")
    assert seats.book("another", "another", "aws", "many") == ""
    assert "aws/many: 3 machines of at most 3" in seats.book("another", "one more", "aws", "many")


class OneMachine:
    """A cloud that refuses, or gives a machine."""

    name = "aws"
    account = "mine"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses = False

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        self.calls.append("claim")
        return Node("i-1", offer, launch.job, launch.epoch, launch.token, 1000.0)

    def __getattr__(self, name: str):
        if name in {"prepare", "adopt", "inspect", "release", "dismantle"}:
            return lambda *args: self.calls.append(name)
        raise AttributeError(name)


def test_a_machine_that_was_given_back_is_told_so_though_the_database_does_not_answer(store: JobStore) -> None:
    machine, seats, blinks = OneMachine(), Seats(store, {}), 2
    free = seats.free

    def blinking(token: str) -> None:
        nonlocal blinks
        blinks -= 1
        if blinks >= 0:
            raise CloudError("the queue's database: away")
        free(token)

    seats.free = blinking  # type: ignore[method-assign]
    cloud = guarded(machine, "digits", seats, lambda: None)
    node = cloud.claim(OFFER, Launch(JobRef("digits", "0000000a"), 1, "token", "", 60.0))
    assert seats.taken("digits")
    cloud.release(node)
    assert not seats.taken("digits")
    assert machine.calls == ["claim", "release"], "once"


def test_without_its_lock_a_job_makes_no_call_of_a_cloud(store: JobStore) -> None:
    class Lost(Exception):
        pass

    held = [True]

    def check() -> None:
        if not held[0]:
            raise Lost

    cloud = OneMachine()
    seats = Seats(store, {"aws/mine": 1})
    found = guarded(cloud, "digits", seats, check)
    launch = Launch(JobRef("digits", "00000001"), 1, "token", "", 60.0)
    node = found.claim(OFFER, launch)
    assert isinstance(node, Node)
    assert seats.taken("digits")
    refused = found.claim(OFFER, Launch(JobRef("digits", "00000001"), 2, "other", "", 60.0))
    assert isinstance(refused, Failure)
    assert (refused.code, cloud.calls) == ("MachineLimit", ["claim"]), "no call for a machine without room"
    held[0] = False
    for call in (lambda: found.claim(OFFER, launch), lambda: found.release(node), lambda: found.prepare("us-east-1")):
        with pytest.raises(Lost):
            call()
    assert cloud.calls == ["claim"]
    held[0] = True
    found.release(node)
    assert not seats.taken("digits")


def test_a_budget_counts_what_the_runs_before_a_pause_have_cost() -> None:
    config: Config = parse(FILE, "f.yaml", Path(), {}, for_start=False)
    node = Node("i-1", OFFER, JobRef("digits", "00000001"), 1, "token", 1000.0)
    hour = replace(bill_of(node, Choice(OFFER), 86400.0), ended=1000.0 + 3600)
    assert _within(config, [], begun=False).policy.budget == Money(Decimal(10), "USD")
    assert _within(config, [hour], begun=False).policy.budget == Money(Decimal(4), "USD"), "an hour at 6 USD"
    with pytest.raises(LimitReached, match="10 USD is spent"):
        _within(config, [hour, hour], begun=False)


def test_a_run_that_has_a_machine_and_no_budget_any_more_is_taken_up_and_ended() -> None:
    """To leave it as it is would leave its machine, too."""
    config: Config = parse(FILE, "f.yaml", Path(), {}, for_start=False)
    node = Node("i-1", OFFER, JobRef("digits", "00000001"), 1, "token", 1000.0)
    hours = replace(bill_of(node, Choice(OFFER), 86400.0), ended=1000.0 + 7200)
    taken_up = _within(config, [hours], begun=True)
    assert "reached" in Limits(taken_up.policy).reached(Begun(0.0, 1), [], None, 1.0)


def test_a_job_that_was_begun_by_hand_and_has_not_ended_is_not_submitted(store: JobStore, tmp_path: Path) -> None:
    file = tmp_path / "failover.yaml"
    file.write_bytes(FILE)
    config = parse(FILE, str(file), tmp_path, {}, for_start=False)
    directory = JobDirectory(store.database.root, "digits")
    directory.create()
    directory.remember(JobRecord("digits", "00000001", 1, open=True, config_path=str(file), started_at=1.0))
    with pytest.raises(ConfigError, match="has not ended"):
        submit(store, file, FILE, config)
    with directory.lock(), pytest.raises(ConfigError, match="already run by process"):
        submit(store, file, FILE, config)
    directory.close()
    submit(store, file, FILE, config)
    with pytest.raises(ConfigError, match="in the queue already"):
        submit(store, file, FILE, config)


def begun(store: JobStore, tmp_path: Path, *, secret: bool = True) -> JobDirectory:
    """Put a job into the queue whose controller has died after it began, and that wants a secret."""
    file, wants = tmp_path / "failover.yaml", b", secrets: [WANDB_KEY]" if secret else b""
    content = FILE.replace(b"python, train.py]", b"python, train.py]" + wants)
    content = content.replace(b"/tmp/store", str(tmp_path / "store").encode())
    file.write_bytes(content)
    directory = JobDirectory(store.database.root, "digits")
    directory.create()
    record = JobRecord("digits", "00000001", 1, open=True, config_path=str(file), started_at=1.0)
    directory.remember(record)
    (directory.path / "failover.1.yaml").write_bytes(content)
    assert store.submit("digits", str(file), content)
    assert store.take(row(store), "desk:77:dead", "1")
    store.began("digits", "desk:77:dead", record.workflow_id)
    return directory


def served(store: JobStore, lines: list[str]) -> ServedJob:
    """Let another controller of this state directory take the job up."""
    taken = row(store)
    assert store.take(taken, "desk:88:next", "1")
    locks, environ = FileLocks(store.database.root), {"FAILOVER_STATE_DIR": str(store.database.root)}
    serving: Any = Serving(
        "desk:88:next", store, Seats(store), SimpleNamespace(), locks, environ, lines.append,  # type: ignore[arg-type]
        lambda _, event: lines.append(str(event.get("words") or event.get("state"))),
    )  # fmt: skip
    job = ServedJob(taken, serving)
    job._run()
    locks.close()
    return job


@pytest.mark.parametrize("record", [None, "another run's"])
def test_a_controller_without_the_shared_state_directory_refuses_the_job_in_one_line_and_begins_nothing(
    tmp_path: Path, record: str | None
) -> None:
    store = JobStore(Database({"FAILOVER_STATE_DIR": str(tmp_path / "state")}))
    directory, lines = begun(store, tmp_path, secret=False), list[str]()
    (directory.path / "job.json").unlink()
    if record is not None:
        directory.remember(JobRecord("digits", "00000001", 7, open=True, config_path="f.yaml", started_at=1.0))
    job = served(store, lines)
    assert (job.ended, row(store).state, row(store).workflow) == (None, State.RUNNING, "digits-00000001-1")
    assert f"the record of its run is not in {directory.path}" in lines[-1]
    assert "FAILOVER_STATE_DIR" in lines[-1]
    assert (directory.record() is None) is (record is None)
    assert not (directory.path / "events.jsonl").exists()
    store.close()


def test_a_job_of_another_state_directory_is_named_as_such(url: str, tmp_path: Path) -> None:
    environ = {"FAILOVER_DATABASE_URL": url, "FAILOVER_STATE_DIR": str(tmp_path / "a")}
    here, there = (
        JobStore(Database(environ)),
        JobStore(Database({**environ, "FAILOVER_STATE_DIR": str(tmp_path / "b")})),
    )
    there.submit("faraway", "f.yaml", FILE)
    said = CliRunner().invoke(cli, ["cancel", "faraway"], env=environ)
    assert "another state directory has it" in str(said.exception or said.stderr)
    assert "of other state directories" in CliRunner().invoke(cli, ["list"], env=environ).stderr
    here.close()
    there.close()


@pytest.mark.parametrize(("command", "way_out"), [("cancel", "failover down digits ends it now"), ("pause", "serve")])
def test_what_waits_for_a_controller_says_so_at_once_and_why_the_last_one_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, way_out: str
) -> None:
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path / "state"))
    store = JobStore(Database())
    directory = begun(store, tmp_path)
    store.told("digits", "desk:77:dead", "WANDB_KEY is not set")
    told = CliRunner().invoke(cli, [command, "digits"])
    assert told.exit_code == 0
    assert "no controller has it, and the last one could not take it up (WANDB_KEY is not set)" in told.stderr
    assert way_out in told.stderr
    assert json.loads(CliRunner().invoke(cli, [command, "digits", "--json"]).stdout)["left"]
    with directory.lock():
        told = CliRunner().invoke(cli, [command, "digits"])
    assert "its controller desk:77 sees to it" in told.stderr
    resumed = CliRunner().invoke(cli, ["resume", "digits"])
    assert f"digits is {'just being paused' if command == 'pause' else 'RUNNING'}" in str(resumed.exception)
    store.close()


def test_a_job_to_be_cancelled_that_no_controller_can_take_up_is_ended_by_the_next_one(tmp_path: Path) -> None:
    """Its secret is not needed for that. Without the wish it stays as it is, and the reason stands in the queue."""
    environ = {"FAILOVER_STATE_DIR": str(tmp_path / "state")}
    store = JobStore(Database(environ))
    directory, lines = begun(store, tmp_path), list[str]()
    job = served(store, lines)
    assert (job.ended, row(store).state, job.again_s > 0) == (None, State.RUNNING, True)
    assert "WANDB_KEY" in row(store).reason
    store.cancel("digits", gently=True)
    job = served(store, lines)
    assert (job.ended, row(store).state, row(store).reason) == (State.CANCELLED, State.CANCELLED, "by the operator")
    record = directory.record()
    assert record is not None
    assert not record.open
    assert "CANCELLED" in lines[-1]
    store.close()
