"""Notices from EC2, schedulers, the driver and the controller, as a real node process takes them."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time

import pytest

from provisioner.checkpoint import layout
from provisioner.node.notices.ec2 import Ec2
from provisioner.node.notices.source import SourceAway
from provisioner.sandbox.metadata import Facts, Metadata


@pytest.fixture
def ec2():
    server = Metadata(Facts("i-1", "r", "z", "t", "a", "10.0.0.1", "spot", "", role=lambda: None))
    yield server
    server.stop()


def on_ec2(server, **environ):
    return {"cloud": "aws", "environ": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url, **environ}}


def test_r30_503_for_a_while_and_then_a_notice_is_seen_within_5_seconds(node_job, ec2):
    ec2.break_down(503, 8.0)
    end = time.monotonic() + 8.0
    node = node_job.start(1, node_job.trainer(steps=5000), steps=5000, **on_ec2(ec2))
    node.until_step(1)
    assert time.monotonic() < end, "the first step did not wait"
    ec2.interrupt(120)
    node.until(lambda: "gives notice: spot terminate" in node.log())
    assert time.monotonic() < end + 5
    assert node.wait() == 75
    assert node.log().count("asking on") == node.log().count("answers again") == 1
    assert node.heartbeat()["end"]["reason"] == "notice: spot terminate"


def test_a_rebalance_recommendation_ends_nothing(node_job, ec2):
    ec2.rebalance()
    node = node_job.start(1, node_job.trainer(steps=200), steps=200, **on_ec2(ec2))
    assert node.wait() == 0
    assert node.log().count("rebalance recommendation; going on") == 1


def test_a_service_that_grants_no_token_says_so(ec2):
    ec2.break_down(403, 60.0)
    with pytest.raises(SourceAway, match="the token request got 403"):
        Ec2(ec2.url).watch(0)


def test_a_schedulers_signal_is_a_notice_and_its_name_is_the_reason(node_job):
    node = node_job.start(1, node_job.trainer(pause=0.05), environ={"FAILOVER_GRACE_S": "20"})
    node.until_step(10)
    node.process.send_signal(signal.SIGUSR1)
    assert node.wait() == 75
    assert node.heartbeat()["end"]["reason"] == "signal SIGUSR1"
    assert node_job.restored_state()["step"] >= 10


def test_a_final_hint_of_the_controller_ends_the_placement_and_advice_does_not(node_job):
    node = node_job.start(1, node_job.trainer(steps=5000, pause=0.05), steps=5000)
    node.until_step(1)
    node_job.store.put(layout.hint(1), json.dumps({"kind": "AutoDL's stock shrinks"}).encode())
    node.until(lambda: "AutoDL's stock shrinks; going on" in node.log())
    hint = {"kind": "the balance runs out", "deadline": time.time() + 30, "detail": "0.40 CNY left", "final": True}
    node_job.store.put(layout.hint(1), json.dumps(hint).encode())
    assert node.wait() == 75
    assert node.heartbeat()["end"]["reason"] == "notice: the balance runs out"
    assert "0.40 CNY left" in node.log()
    assert node_job.restored_state()["step"] >= 1


NVML = """
    import os, pathlib
    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__("GPU is lost" if value == 15 else f"error {value}")
            self.value = value
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 4, 13
    NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 10, 15, 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8
    def nvmlInit(): pass
    def nvmlShutdown(): pass
    def nvmlSystemGetDriverVersion(): return "580.65.06"
    def nvmlDeviceGetCount(): return 1
    def nvmlDeviceGetHandleByIndex(index): return index
    def nvmlEventSetCreate(): return None
    def nvmlDeviceRegisterEvents(handle, types, events): pass
    def nvmlEventSetWait_v2(events, timeout): raise NVMLError(NVML_ERROR_TIMEOUT)
    def nvmlDeviceGetTotalEccErrors(handle, kind, counter): raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    def nvmlDeviceGetComputeRunningProcesses(handle):
        if pathlib.Path(os.environ["LOST"]).exists():
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        return []
    def nvmlDeviceGetMemoryInfo(handle): raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
"""


@pytest.mark.parametrize("first", ["the driver", "the command"])
def test_a_lost_gpu_is_no_failure_of_the_job_whoever_sees_it_first(node_job, first):
    """A card that falls off the bus ends most programs with an error of their own, before anybody asks the driver."""
    library = node_job.root / "library"
    library.mkdir()
    (library / "pynvml.py").write_text(textwrap.dedent(NVML))
    lost = node_job.root / "lost"
    if first == "the driver":
        command = node_job.trainer(steps=5000)
    else:
        command = node_job.script(f"""
            import pathlib, time
            print("step 1", flush=True)
            time.sleep(3)
            pathlib.Path({str(lost)!r}).touch()
            raise SystemExit("CUDA error: unspecified launch failure")
        """)
    path = f"{library}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    node = node_job.start(1, command, steps=5000, environ={"PYTHONPATH": path, "LOST": str(lost)})
    node.until_step(1)
    if first == "the driver":
        node.until_committed(10)
        lost.touch()
    assert node.wait() == 75
    assert node_job.done() is None
    assert node.heartbeat()["end"]["reason"] == "notice: lost GPU"
