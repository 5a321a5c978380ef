"""``failover sweep`` beside a real run whose controller was killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from provisioner.controller.directory import JobDirectory
from tests.e2e.test_run_local import Place, wait


def test_what_the_open_run_holds_outlives_a_sweep_and_what_an_ended_run_left_does_not(tmp_path: Path) -> None:
    place = Place(tmp_path)
    file = place.config(steps=2000)
    with place.start("run", str(file)) as controller:
        place.wait_for_step(3)
        controller.send_signal(signal.SIGKILL)
        controller.communicate()
    code, out, err = place.call("sweep", str(file), "--older", "0s", "--yes", "--json")
    assert (code, json.loads(out)["things"]) == (0, []), err
    assert place.nodes(), "the machine trains on without its controller"
    JobDirectory(tmp_path / "state", "small").close()
    assert place.call("sweep", str(file))[0] == 1
    code, out, err = place.call("sweep", str(file), "--yes", "--json")
    assert (code, [one["removed"] for one in json.loads(out)["things"]]) == (0, [True]), err
    wait(lambda: not place.nodes(), "the end of every process", 10)
