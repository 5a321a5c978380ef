"""Our planner beside SkyPilot's optimizer and gpuhunt, on the same rows: `python benchmarks/plan.py [--json FILE]`.

It prints how long each takes to plan one job (a process that has its catalog already), how long our whole command
takes, and a table of the cheapest offers for twenty jobs, with the reason where they differ. The others get virtual
environments of their own, made when they are first needed (SkyPilot's takes minutes and 800 MB; --without skypilot).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.plan_jobs import JOBS, Job
from benchmarks.plan_rows import rows, write_gpuhunt, write_ours, write_sky

HERE = Path(__file__).parent
RIVALS = {"skypilot": ("skypilot[aws]==0.14.1", "plan_sky.py"), "gpuhunt": ("gpuhunt==0.1.34", "plan_gpuhunt.py")}
WARM_GOAL_S = 0.010
PROCESS_GOAL_S = 0.4
TIMES_SKYPILOT = 50
Answer = dict[str, Any]


def main() -> int:
    """Measure and print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="plans of each kind (10); SkyPilot's, a third of it")
    parser.add_argument("--without", action="append", default=[], choices=sorted(RIVALS), help="leave one out")
    parser.add_argument("--scratch", type=Path, default=HERE.parent / ".venv-plan", help="environments and rows")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    found = rows()
    data = options.scratch / "data"
    write_ours(found, data / "ours")
    often = 10 * options.runs  # a plan of ours is short beside what else a machine does
    answers = {"ours": _drive(Path(sys.executable), "plan_ours.py", data / "ours", often)}
    for name, (pinned, script) in RIVALS.items():
        if name in options.without:
            continue
        python = _environment(options.scratch / name, pinned)
        (write_sky if name == "skypilot" else write_gpuhunt)(found, data / name)
        runs = max(3, options.runs // 3) if name == "skypilot" else options.runs
        answers[name] = _drive(python, script, data / name, runs)
    answers["ours"]["processes"] = {
        "packaged catalog": _process(options.scratch, [], options.runs),
        f"{len(found)} rows": _process(options.scratch, [str((data / "ours").resolve())], options.runs),
    }
    print(f"{len(found)} rows; {_machine()}\n")
    missed = _print_times(answers)
    _print_cheapest(answers)
    if options.json:
        options.json.write_text(json.dumps({"rows": len(found), "machine": _machine(), **answers}, indent=2), "utf-8")
    return 1 if missed else 0


def _environment(folder: Path, pinned: str) -> Path:
    """Return the interpreter of a rival's environment, which is made on demand."""
    python, stamp = folder / "bin" / "python", folder / ".pinned"
    if not stamp.exists() or stamp.read_text("utf-8") != pinned:
        uv = HERE.parent / ".venv" / "bin" / "uv"
        subprocess.run([str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([str(uv), "pip", "install", "--quiet", "--python", str(python), pinned], check=True)
        stamp.write_text(pinned, "utf-8")
    return python


def _drive(python: Path, script: str, data: Path, runs: int) -> Answer:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))},
        "HOME": str(data.resolve()),
        "SKY_RUNTIME_DIR": str(data.resolve()),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    run = subprocess.run(
        [str(python), str(HERE / script), str(data.resolve()), str(runs)],
        check=True,
        stdout=subprocess.PIPE,
        env=environ,
        timeout=1800,
    )
    answer: Answer = json.loads(run.stdout.decode().splitlines()[-1])
    return answer


def _process(scratch: Path, data: list[str], runs: int) -> Answer:
    """Time `failover plan --json` as a whole process; with ``data``, on the rows there.

    Byte code is kept, as it is for whoever runs the command twice, whatever the environment of the benchmark says.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str((scratch / "bytecode").resolve())
    code = "import sys; from provisioner.cli import main; sys.exit(main(['plan', *sys.argv[1:3], '--json']))"
    if data:
        code = (
            f"from pathlib import Path; from provisioner.catalog import tables; tables.DATA = Path({data[0]!r}); {code}"
        )
    argv = [sys.executable, "-c", code, "-f", str(HERE.parent / "examples" / "t4-or-v100.yaml")]
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environ, timeout=60)
        times.append(time.perf_counter() - start)
    return {"seconds": times[1:]}


def _print_times(answers: dict[str, Answer]) -> bool:
    """Print the times and say whether a goal is missed."""
    print("Medians, and the best in brackets.\n")
    print("| planner | first plan of a process | spot plan, warm | on-demand plan, warm |")
    print("|---|---|---|---|")
    for name, answer in answers.items():
        on_spot, on_demand = (_both(answer["warm"][market]) for market in ("spot", "on demand"))
        print(f"| {name} | {answer['first_s']:.2f} s | {on_spot} | {on_demand} |")
    ours = answers["ours"]
    warm = ours["warm"]["spot"]
    spot, missed = _median(warm), bool(min(warm["seconds"]) > WARM_GOAL_S)
    print(f"\nwarm plan of {warm['offers']} offers, goal {WARM_GOAL_S * 1000:.0f} ms: {_both(warm)}")
    for what, times in ours["processes"].items():
        quickest, median = min(times["seconds"]), _median(times)
        print(f"failover plan --json, {what}, goal {PROCESS_GOAL_S} s: {median:.3f} s (best {quickest:.3f} s)")
        missed |= what == "packaged catalog" and quickest > PROCESS_GOAL_S
    for name in RIVALS:
        if name in answers:
            ratio = _median(answers[name]["warm"]["spot"]) / spot
            goal = f", goal {TIMES_SKYPILOT}" if name == "skypilot" else ""
            print(f"{name}'s spot plan takes {ratio:.0f} times as long{goal}")
            missed |= name == "skypilot" and ratio < TIMES_SKYPILOT
    return missed


def _print_cheapest(answers: dict[str, Answer]) -> None:
    names = [name for name in RIVALS if name in answers]
    print("\n| job | ours |" + "".join(f" {name} |" for name in names) + " why they differ |")
    print("|---|---|" + "---|" * (len(names) + 1))
    for job in JOBS:
        ours = answers["ours"]["best"][job.name]
        others = {name: answers[name]["best"][job.name] for name in names}
        why = "; ".join(dict.fromkeys(filter(None, (_why(job, ours, name, one) for name, one in others.items()))))
        print(f"| {job.name} | {_cell(ours)} |" + "".join(f" {_cell(one)} |" for one in others.values()) + f" {why} |")


def _cell(one: Answer | None) -> str:
    if one is None or "error" in one:
        return "nothing"
    return f"{one['type']} {one['where']} {one['price']:.4f}"


def _why(job: Job, ours: Answer | None, name: str, other: Answer | None) -> str:
    """Explain a difference between ours and another's cheapest offer, or say nothing where there is none."""
    if other is None or "error" in other or ours is None:
        if (other is None or "error" in other) and ours is None:
            return ""
        return f"{name}: {(other or {}).get('error', 'finds none')}" if ours else "ours finds none"
    if abs(ours["price"] - other["price"]) < 1e-4:
        return ""
    if len(job.gpus) > 1 and ours["price"] > other["price"]:
        return f"ours is the dearer hour and the cheaper job: it is reckoned {ours['speed']:.1f} times as fast as a T4"
    return f"{name}: NOT EXPLAINED"


def _both(times: Answer) -> str:
    return f"{_median(times) * 1000:.1f} ms ({min(times['seconds']) * 1000:.1f})"


def _median(times: Answer) -> float:
    return float(statistics.median(times["seconds"]))


def _machine() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor(),
    )
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {system}"


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())
