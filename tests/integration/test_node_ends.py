"""How a placement ends: real node processes, real children, real signals."""

from __future__ import annotations

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import zstandard

from provisioner.checkpoint import epochs, layout


def group(pid: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def test_a_job_that_is_left_alone_is_done(node_job):
    node = node_job.start(1, node_job.trainer(steps=30), steps=30)
    assert node.wait() == 0
    done = node_job.done()
    assert done["result"] == "completed"
    assert (done["exit_code"], done["final_step"], done["epoch"]) == (0, 30, 1)
    assert node_job.restored_state()["step"] == 30
    beat = node.heartbeat()
    assert beat["phase"] == "ended"
    assert beat["end"] == {"reason": "completed", "exit_code": 0, "cause": "done"}
    assert beat["restored_step"] is None
    assert beat["first_step_at"] < beat["time"]
    assert beat["last_commit"]["step"] == 30
    logs = b"".join(
        zstandard.decompress(node_job.store.get(part.key)) for part in node_job.store.objects(layout.logs(1))
    )
    assert b"step 30\n" in logs
    assert b"[failover] step 30 is committed" in logs


@pytest.mark.parametrize("to", ["child", "child's group", "node", "node's group"])
def test_r12_ab_code_0_after_a_signal_is_not_done_and_the_next_node_ends_at_100(node_job, to):
    first = node_job.start(1, node_job.trainer(pause=0.02))
    first.until_step(40)
    if to == "child":
        os.kill(first.child_pid(), signal.SIGTERM)
    elif to == "child's group":
        os.killpg(first.child_pid(), signal.SIGTERM)
    elif to == "node":
        first.process.send_signal(signal.SIGTERM)
    else:  # as Ctrl-C or a scheduler does it: both at once
        os.killpg(first.child_pid(), signal.SIGTERM)
        first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 75
    assert node_job.done() is None
    stopped_at = node_job.restored_state()["step"]
    assert 40 <= stopped_at < 100
    second = node_job.start(2, node_job.trainer(pause=0.0))
    assert second.wait() == 0
    assert second.heartbeat()["restored_step"] == stopped_at
    assert node_job.done()["final_step"] == 100
    assert node_job.restored_state()["step"] == 100


class MetadataServer(ThreadingHTTPServer):
    notice: dict[str, str] | None = None


class Metadata(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_PUT(self):
        self._answer(200, b"token")

    def do_GET(self):
        if self.path.endswith("/spot/instance-action") and self.server.notice:
            self._answer(200, json.dumps(self.server.notice).encode())
        else:
            self._answer(404, b"")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata():
    server = MetadataServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("steps", [100, None])
def test_r12_d_code_0_after_a_notice_is_not_done(node_job, metadata, steps):
    node = node_job.start(
        1,
        node_job.trainer(pause=0.05),
        steps=steps,
        cloud="aws",
        environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_port}"},
    )
    node.until_step(10)
    metadata.notice = {"action": "terminate", "time": "2099-01-01T00:00:00Z"}
    assert node.wait() == 75
    assert node_job.done() is None
    assert node.heartbeat()["end"] == {"reason": "notice: spot terminate", "exit_code": 75, "cause": "notice"}
    assert node_job.restored_state()["step"] >= 10


def test_r12_the_done_file_is_the_trainers_own_word(node_job):
    node = node_job.start(
        1,
        node_job.script(
            """
            import os, pathlib, signal, time
            def term(*_):
                pathlib.Path(os.environ["FAILOVER_DONE_FILE"]).touch()
                raise SystemExit(0)
            signal.signal(signal.SIGTERM, term)
            print("step 3", flush=True)
            time.sleep(60)
            """
        ),
    )
    node.until_step(3)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    assert node_job.done()["result"] == "completed"


def test_r12_code_0_before_the_last_step_without_progress_is_a_failure_not_a_loop(node_job):
    node = node_job.start(1, node_job.script("print('step 4')"))
    assert node.wait() == 1
    assert node_job.done()["result"] == "failed"
    assert "step 4 of 100" in node_job.done()["reason"]


def test_a_last_checkpoint_that_no_machine_could_read_fails_the_job_and_is_no_loop(node_job):
    deep = (
        "import os, pathlib",
        "out = pathlib.Path(os.environ['FAILOVER_CHECKPOINT_DIR'])",
        "(out / 'tmp-100').mkdir()",
        "os.chdir(out / 'tmp-100')",
        "for _ in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)  # longer than a path may be",
        "os.rename(out / 'tmp-100', out / 'step-100')",
        "print('step 100')",
    )
    node = node_job.start(1, node_job.script("\n".join(deep)))
    assert node.wait() == 1
    done = node_job.done()
    assert (done["result"], done["exit_code"]) == ("failed", 1)
    assert done["reason"] == "its last checkpoint cannot be read"
    assert "File name too long" in node.log()


def test_code_0_is_done_where_no_last_step_is_declared(node_job):
    node = node_job.start(1, "echo step 7", steps=None)
    assert node.wait() == 0
    assert node_job.done()["final_step"] == 7


def test_a_failing_command_fails_the_job_and_leaves_its_last_lines(node_job):
    node = node_job.start(1, "for i in $(seq 30); do echo line $i; done; exit 3")
    assert node.wait() == 1
    done = node_job.done()
    assert (done["result"], done["exit_code"], done["reason"]) == ("failed", 3, "the command ended with code 3")
    last = node_job.store.get(layout.last_lines(1)).decode().splitlines()
    assert "line 30" in last
    assert len(last) == 20


def test_a_command_that_is_not_there_fails_the_job(node_job):
    node = node_job.start(1, ["/no/such/program"])
    assert node.wait() == 1
    assert "'/no/such/program' cannot be started" in node_job.done()["reason"]


def test_a_command_killed_by_sigkill_names_the_usual_cause(node_job):
    node = node_job.start(1, node_job.trainer())
    os.kill(node.child_pid(), signal.SIGKILL)
    assert node.wait() == 1
    assert "OOM" in node_job.done()["reason"]


def test_a_command_that_ignores_sigterm_is_killed_in_time_and_older_commits_stay(node_job):
    node = node_job.start(1, node_job.trainer(pause=0.1, on_term="ignore"), environ={"FAILOVER_GRACE_S": "4"})
    node.until_committed(10)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(timeout=15) == 75
    assert node_job.restored_state()["step"] >= 10
    assert "SIGKILL" in node.text()


def test_workers_that_the_command_leaves_behind_are_killed(node_job):
    node = node_job.start(1, "sleep 300 & sleep 1; echo step 100")
    pid = node.child_pid()
    assert node.wait(timeout=20) == 0
    assert group(pid) == []


def test_the_machines_time_ends_with_a_last_checkpoint(node_job):
    node = node_job.start(1, node_job.trainer(pause=0.05), ttl_s=3)
    assert node.wait() == 75
    assert "ttl" in node.heartbeat()["end"]["reason"]
    assert node_job.restored_state()["step"] > 10


def test_a_newer_epoch_stops_the_old_node_which_writes_nothing_more(node_job):
    old = node_job.start(1, node_job.trainer(pause=0.05))
    old.until_committed(10)
    epochs.take(node_job.store, 2, "token-of-2", "elsewhere")
    assert old.wait() == 75
    before = {stored.key: stored for stored in node_job.store.objects("")}
    assert node_job.done() is None
    assert old.heartbeat()["end"] is None
    assert before == {stored.key: stored for stored in node_job.store.objects("")}
    again = node_job.start(1, node_job.trainer(), machine="machine-1")
    assert again.wait() == 75


def test_two_nodes_for_one_epoch_only_one_trains(node_job):
    nodes = [
        node_job.start(1, node_job.trainer(steps=20), machine=name, token=name, steps=20) for name in ("left", "right")
    ]
    assert sorted(node.wait() for node in nodes) == [0, 75]
    winner = json.loads(node_job.store.get(layout.owner(1)))["token"]
    loser = next(node for node in nodes if node.directory.name != winner)
    assert "step 1" not in loser.log()


def test_a_node_that_ended_before_says_so_again_and_trains_nothing(node_job):
    assert node_job.start(1, node_job.trainer(steps=10), steps=10).wait() == 0
    again = node_job.start(1, "echo trained again; exit 9", steps=10)
    assert again.wait() == 0
    assert "trained again" not in again.log()


def test_a_node_with_a_living_twin_in_its_directory_leaves_it_alone(node_job):
    first = node_job.start(1, node_job.trainer(steps=50, pause=0.2), steps=50)
    first.until_step(1)
    second = node_job.start(1, node_job.trainer(), machine="machine-1", steps=50)
    assert second.wait() == 70
    assert "another node process runs here" in second.text()
    first.until_step(8)


def test_secrets_stay_out_of_the_logs_and_the_commands_environment(node_job):
    canary = "canary-0123456789"
    node = node_job.start(
        1,
        'echo "my key is $API_KEY"; env; echo step 100',
        environ={"FAILOVER_GRACE_S": "9"},
        secret_names=["API_KEY"],
        token="fence-token-abcdef",
        env={"API_KEY": canary, "PLAIN": "shown"},
    )
    assert node.wait() == 0
    written = node.text() + node.log() + (node.directory / "node/events.jsonl").read_text()
    parts = [zstandard.decompress(node_job.store.get(p.key)).decode() for p in node_job.store.objects(layout.logs(1))]
    assert "my key is [hidden]" in "".join(parts)
    assert "PLAIN=shown" in "".join(parts)
    for text in (written, *parts):
        assert canary not in text
        assert "fence-token-abcdef" not in text
        assert "FAILOVER_GRACE_S" not in text
