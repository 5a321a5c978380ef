"""One request to a metadata service, with short time limits and no proxy."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from provisioner.node.notices.source import SourceAway, SourceSilent

TIMEOUT_S = 1.0
"""How long a connection, and each part of an answer, may take, in seconds."""
_LONGEST_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """``headers`` has names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    endpoint: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float = TIMEOUT_S,
    wait_s: float = 0.0,
) -> Answer:
    """Ask once. The answer may begin ``wait_s`` seconds late on purpose. Raises SourceAway, SourceSilent."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise SourceAway(f"no connection: {type(error).__name__}") from error
    try:
        connection.sock.settimeout(timeout_s + wait_s)
        connection.request(method, parts.path.rstrip("/") + path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read(_LONGEST_BYTES)
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)
    except TimeoutError as error:
        raise SourceSilent("it takes the connection and does not answer") from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceAway(type(error).__name__) from error
    finally:
        connection.close()
