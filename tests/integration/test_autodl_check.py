"""`failover check` against the emulator: the table, the document, the watch, the metrics and the notices."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli import main
from provisioner.clouds.autodl.watch import Pace, watch
from provisioner.errors import ConfigError, Unauthorized, Unreachable
from provisioner.sandbox.autodl import AutodlEmulator, EmulatorConfig
from provisioner.sandbox.autodl.box import Server
from provisioner.telemetry.metrics import MetricsServer, StockMetrics
from provisioner.telemetry.notify import Notifier, urls_from

TOKEN = "canary-developer-token"
CONFIG = """\
job: {{name: digits, command: "python train.py"}}
resources: {{gpus: any, count: {count}}}
checkpoint: {{store: "file://{store}"}}
primary:
  autodl: {{mode: {mode}, gpus: [{gpu}], image_uuid: base-image-l2t43iu6uk, base_url: "{url}"}}
fallback: [{{local: {{}}}}]
"""


@pytest.fixture
def autodl(monkeypatch, tmp_path):
    emulator = AutodlEmulator(EmulatorConfig(token=TOKEN))
    server = Server(emulator)
    monkeypatch.setenv("AUTODL_TOKEN", TOKEN)
    monkeypatch.setenv("AUTODL_BASE_URL", server.url)
    monkeypatch.chdir(tmp_path)
    yield server, emulator
    server.stop()


def write(path, url, mode="elastic", gpu="RTX 4090", count=1):
    text = CONFIG.format(mode=mode, gpu=gpu, url=url, count=count, store=path / "store")
    (path / "failover.yaml").write_text(text, encoding="utf-8")


def document(capsys):
    return json.loads(capsys.readouterr().out)


def test_without_a_file_every_region_and_card_is_shown(autodl, capsys):
    assert main(["check", "--json"]) == 0
    shown = document(capsys)
    assert len(shown["regions"]) == 11
    assert {
        "region": "westDC3",
        "gpu": "RTX 4090",
        "idle": 90,
        "total": 1775,
        "price_per_hour": 1.98,
        "fits": True,
    } in (shown["stock"])
    assert shown["balance"] == {"amount": 1000.0, "currency": "CNY"}
    assert main(["check"]) == 0
    said = capsys.readouterr()
    assert "neimengDC3" in said.out
    assert "1000 CNY" in said.out
    assert "free at AutoDL" in said.err
    assert TOKEN not in said.out + said.err


def test_an_unknown_region_is_not_sold_out(autodl, capsys):
    _, emulator = autodl
    emulator.set_stock("chongqingDC1", "*", 0)
    regions = ["--region", "westDC9", "--region", "chongqingDC1", "--region", "foshanDC1"]
    assert main(["check", "--json", "--gpu", "RTX 4090", *regions]) == 3
    states = {row["region"]: row["state"] for row in document(capsys)["regions"]}
    assert states == {"westDC9": "unknown_region", "chongqingDC1": "sold_out", "foshanDC1": "empty"}
    assert main(["check", "--gpu", "RTX 4090", *regions]) == 3
    assert "unknown region" in capsys.readouterr().out


def test_an_elastic_job_fits_or_does_not(autodl, capsys, tmp_path):
    server, emulator = autodl
    write(tmp_path, server.url, gpu="L20")
    assert main(["check", "--json"]) == 0
    shown = document(capsys)
    assert (shown["fits"], shown["certain"]) == (True, True)
    assert [(row["region"], row["available"]) for row in shown["offers"]] == [("beijingDC4", 9)]
    emulator.set_stock("*", "L20", 0)
    assert main(["check", "failover.yaml", "--json"]) == 3
    assert document(capsys)["fits"] is False


def test_a_pro_job_is_told_that_stock_does_not_predict_pro(autodl, capsys, tmp_path):
    server, _ = autodl
    write(tmp_path, server.url, mode="pro", gpu="4090D")
    assert main(["check", "--json"]) == 0
    shown = document(capsys)
    assert (shown["fits"], shown["certain"]) == (True, False)
    assert "does not predict Pro" in shown["note"]
    assert [(row["region"], row["type"], row["available"]) for row in shown["offers"]] == [(None, "4090D", None)]
    assert [row["region"] for row in shown["stock"] if row["fits"]] == ["beijingDC2"]


@pytest.mark.parametrize(
    "case",
    [
        (["--notify", "json://localhost"], {}, 2, "--watch"),
        (["--watch", "--notify", "nonsense://canary"], {}, 2, "number 1"),
        (["--watch"], {"FAILOVER_NOTIFY": "json://localhost nonsense://canary"}, 2, "number 2"),
        (["--base-url", "ftp://x"], {}, 2, "base_url"),
        (["missing.yaml"], {}, 2, "missing.yaml"),
        ([], {"AUTODL_TOKEN": "Bearer canary"}, 2, "AUTODL_TOKEN"),
        ([], {"AUTODL_TOKEN": "canary-wrong"}, 5, "AuthorizeFailed"),
        (["--watch"], {"AUTODL_TOKEN": "canary-wrong"}, 5, "AuthorizeFailed"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_without_secrets(autodl, capsys, caplog, monkeypatch, case):
    arguments, environ, code, word = case
    caplog.set_level(logging.DEBUG)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["check", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert word in said.err.splitlines()[0]
    assert "canary" not in said.err + caplog.text


def test_without_a_token_the_command_says_where_to_get_one(autodl, capsys, monkeypatch):
    monkeypatch.delenv("AUTODL_TOKEN")
    assert main(["check"]) == 2
    assert "AUTODL_TOKEN is not set" in capsys.readouterr().err


def test_a_watch_ends_when_a_card_comes_free_and_tells_everyone(autodl, tmp_path):
    """The command as a process: metrics while it waits, a notice when the card is there, then exit code 0."""
    _, emulator = autodl
    emulator.set_stock("*", "*", 0)
    notices: list[str] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            notices.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    url = f"json://127.0.0.1:{receiver.server_port}/canary-path"
    process = subprocess.Popen(
        [sys.executable, "-m", "provisioner.cli", "check", "--gpu", "L20", "--watch", "--interval", "0.1", "--json",
         "--metrics-port", "0"],
        env={**os.environ, "FAILOVER_NOTIFY": url, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        process.stderr.readline()  # it has looked once
        with urllib.request.urlopen(address, timeout=10) as answer:
            metrics = answer.read().decode()
        assert 'autodl_gpu_available{gpu="L20",region="beijingDC4"} 0.0' in metrics
        emulator.set_stock("beijingDC4", "L20", 2)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        receiver.shutdown()
        receiver.server_close()
        thread.join()
    assert process.returncode == 0
    assert json.loads(out)["fits"] is True
    assert len(notices) == 1
    assert "2 x L20 in beijingDC4" in notices[0]
    assert "canary" not in out + err


# -- parts


class Look:
    def __init__(self, fits):
        self.fits = fits


class Heard(list):
    def looked(self, look):
        pass

    def failed(self, error, wait_s):
        self.append("failed")

    def nothing(self, look, wait_s):
        self.append("nothing")

    def came_free(self, look):
        self.append("free")


def play(script, **options):
    """Run a watch over looks (True, False) and errors; return what was heard and the waits."""
    left: list[Any] = list(script)
    heard, waits = Heard(), []

    def look() -> Any:
        step = left.pop(0)
        if isinstance(step, Exception):
            raise step
        found: Any = Look(step)
        return found

    def sleep(seconds):
        waits.append(seconds)
        if not left:
            raise KeyboardInterrupt

    result = watch(look, heard, pace=Pace(20.0), sleep=sleep, clock=lambda: sum(waits), **options)
    return result, heard, waits


def test_a_watch_survives_a_silent_autodl_and_slows_down():
    result, heard, waits = play([False, Unreachable("x"), *[False] * 12, True])
    assert result is not None
    assert heard == ["nothing", "failed", *["nothing"] * 12, "free"]
    assert 15 <= waits[0] <= 25
    assert waits[0] < waits[4]
    assert max(waits) <= 180 * 1.25
    assert min(waits[8:]) >= 180 * 0.75


def test_a_watch_for_ever_tells_each_time_that_cards_come_free_and_not_in_between():
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        play_into(heard, [False, True, True, False, True])
    assert heard == ["nothing", "free", "nothing", "free"]


def play_into(heard, script):
    left = list(script)

    def sleep(seconds):
        if not left:
            raise KeyboardInterrupt

    def look() -> Any:
        return Look(left.pop(0))

    listener = Heard()
    try:
        watch(look, listener, pace=Pace(1.0), forever=True, sleep=sleep)
    finally:
        heard += listener


def test_a_watch_ends_in_time_and_at_once_for_a_bad_token():
    result, _, waits = play([False] * 50, timeout_s=100)
    assert result is None
    assert sum(waits) <= 100
    with pytest.raises(Unauthorized):
        play([False, Unauthorized("no")])


def test_metrics_forget_a_card_that_is_listed_no_more():
    metrics = StockMetrics()
    metrics.looked({("a", "X"): 3, ("b", "Y"): 0}, 5.0)
    metrics.looked({("a", "X"): 1}, 6.0)
    metrics.failed(7.0)
    with MetricsServer(metrics.registry, 0) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(ConfigError, match="metrics cannot be served"):
            MetricsServer(metrics.registry, server.port)
    assert [line for line in text.splitlines() if line.startswith("autodl_gpu_available{")] == [
        'autodl_gpu_available{gpu="X",region="a"} 1.0'
    ]
    assert "autodl_stock_last_failure_timestamp_seconds 7.0" in text


def test_a_notice_that_cannot_be_delivered_is_counted_and_its_url_is_not_shown(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    notifier = Notifier(["json://127.0.0.1:1/canary", "json://127.0.0.1:1/canary2"])
    assert notifier.send("title", "body") == [1, 2]
    said = capfd.readouterr()
    assert "canary" not in repr(notifier) + caplog.text + said.out + said.err


def test_options_go_before_the_environment():
    assert urls_from(["a://b"], {"FAILOVER_NOTIFY": "c://d"}) == ["a://b"]
    assert urls_from([], {"FAILOVER_NOTIFY": " c://d\n e://f?x=1,2 "}) == ["c://d", "e://f?x=1,2"]
    assert urls_from([], {}) == []
    assert Notifier([]).send("t", "b") == []
