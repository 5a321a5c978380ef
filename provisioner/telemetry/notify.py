"""Notices to people, through apprise: its URLs name chat rooms, mail and telephones, and hold their secrets.

A URL is never shown: not in an error, not in a log (apprise itself logs URLs; its logger is silenced here).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from provisioner.errors import ConfigError

VARIABLE = "FAILOVER_NOTIFY"
"""Environment variable with URLs, separated by blanks or line breaks."""

_CHATTY = ("apprise", "urllib3", "requests", "httpx", "httpcore")


def urls_from(options: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the URLs of the options, else those of the environment."""
    return list(options) or environ.get(VARIABLE, "").split()


class Notifier:
    """Sends to every URL. Without URLs it does nothing, and apprise is not imported."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Check the URLs. Raises ConfigError that tells a bad one by its number."""
        self._services: list[Any] = []
        for number, url in enumerate(urls, start=1):
            service = _service(url)
            if service is None:
                raise ConfigError(
                    f"notification URL number {number} is not one that apprise understands (it is not shown: it may"
                    " hold a secret)",
                    hint=f"see apprise's list of services; URLs come from --notify, or from {VARIABLE}",
                )
            self._services.append(service)

    def __repr__(self) -> str:
        """Count the URLs, and show none."""
        return f"Notifier({len(self._services)} services)"

    def __len__(self) -> int:
        return len(self._services)

    def send(self, title: str, body: str) -> list[int]:
        """Send to each service and return the numbers (from 1) of those that failed. Never raises for them."""
        import apprise

        failed = []
        for number, service in enumerate(self._services, start=1):
            with _silence():
                sender = apprise.Apprise()
                sender.add(service)
                if not sender.notify(body=body, title=title):
                    failed.append(number)
        return failed


def _service(url: str) -> Any:
    import apprise

    with _silence():
        return apprise.Apprise.instantiate(url, suppress_exceptions=True)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the libraries that log URLs quiet while they work."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
