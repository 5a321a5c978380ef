"""The benchmark of many jobs: how it reckons what each further job costs, and how a figure grows."""

from __future__ import annotations

from benchmarks.scale import PER_JOB, ROWS, table


def figures(jobs: int) -> dict[str, float]:
    return dict.fromkeys(ROWS, 5.0) | dict.fromkeys(PER_JOB, 5.0 + 2.0 * jobs) | {"taken_up": jobs * jobs / 100}


def test_what_a_job_costs_is_told_without_what_the_controller_costs_anyway():
    lines = table({10: figures(10), 1000: figures(1000), 100: figures(100)})
    assert lines[0].startswith("| | 10 jobs | 100 jobs | 1,000 jobs |")
    told = {
        line.split(" | ")[0].strip("| "): [cell.strip() for cell in line.strip("|").split("|")[1:]] for line in lines
    }
    assert told["requests to the store, for a job and hour"] == ["", "2", "2", ""]
    assert told["requests to the store, an hour"] == ["25", "205", "2,005", "x 9.8"]
    assert told["all submitted at once: until all train, s"] == ["1", "100", "10,000", "x 100.0"]
    assert told["between two looks at a job, median, s"][-1] == "x 1.0"
