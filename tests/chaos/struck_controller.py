"""``failover run FILE --json`` that is struck right after its n-th recorded step: ``struck_controller.py FILE N ROOM``.

It writes ``ROOM/struck`` and waits for ``ROOM/go_on``, unless it is killed meanwhile.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from provisioner.cli import main
from provisioner.controller import run

_PATIENCE_S = 15.0


def struck_after(deadly: int, room: Path) -> type[run.Controller]:
    """Return a controller that is struck after so many steps."""

    def after_step(count: int, name: str) -> None:
        if count == deadly:
            (room / "struck").write_text(f"{count} {name}")
            end = time.monotonic() + _PATIENCE_S
            while not (room / "go_on").exists() and time.monotonic() < end:
                time.sleep(0.02)

    class Struck(run.Controller):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named, after_step=after_step)

    return Struck


if __name__ == "__main__":
    run.Controller = struck_after(int(sys.argv[2]), Path(sys.argv[3]))  # type: ignore[misc]
    sys.argv[1:] = ["run", sys.argv[1], "--json"]
    sys.exit(main())
