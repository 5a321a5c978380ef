"""docs/guarantees.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r"def (test_\w+)\(", tests))
    named = re.findall(r"`(test_\w+)(\*?)`", text)
    assert len(named) > 20
    for name, star in named:
        assert any(test.startswith(name) if star else test == name for test in known), name
    for path in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
