"""The ``failover`` command. Each group is a file of its own, imported only when it is used.

Data goes to stdout, words to stderr. Exit codes: ``provisioner.errors.ExitCode``, docs/exit-codes.md.

This module imports nothing of weight: Ctrl-C must find ``main`` at work before the imports begin.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing alone takes longer to import than all before it
if TYPE_CHECKING:
    from types import TracebackType

_INTERRUPTED = 130
"""``ExitCode.INTERRUPTED``."""
_SOON_S = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code. Every error is one line on stderr.

    Without ``arguments`` it is all that the process does: then Ctrl-C ends it with exit code 130 and no traceback,
    wherever it falls, also within an import or after the command.
    """
    whole = arguments is None
    if whole:
        sys.excepthook, sys.unraisablehook = _uncaught, _dropped
    from provisioner.cli.command import run

    code = run(arguments)
    if whole:
        sys.unraisablehook = _dropped_at_the_end
    return code


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os.write(2, b"interrupted\n")
        os._exit(_INTERRUPTED)
    sys.__excepthook__(kind, error, trace)


def _dropped(found: sys.UnraisableHookArgs) -> None:
    """Raise Ctrl-C again that fell into a callback, as Python's imports have them: else it would be lost."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)
        return
    import _thread
    import time

    def again() -> None:
        time.sleep(_SOON_S)  # by then the callback is over
        _thread.interrupt_main()

    _thread.start_new_thread(again, ())


def _dropped_at_the_end(found: sys.UnraisableHookArgs) -> None:
    if issubclass(found.exc_type, KeyboardInterrupt):
        os._exit(_INTERRUPTED)
    sys.__unraisablehook__(found)
