"""Google's REST interfaces, by the standard library alone: Terraform starts a provider three times a run."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tf.types import Unknown

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.google import ENDPOINTS

TOKEN: Final = "GOOGLE_OAUTH_ACCESS_TOKEN"  # noqa: S105 - a variable's name
SETTLE_S: Final = 120.0
POLL_S: Final = 0.1
TIMEOUT_S: Final = 30.0
_SCOPE: Final = re.compile(r"^projects/[^/]+/(?:global|regions/[^/]+|zones/[^/]+)")


class Missing(Refused):
    """The cloud does not know the thing (404)."""


class Conflict(Refused):
    """The thing exists, or has changed since it was read (409, 412)."""


class Rest:
    """The cloud at the custom endpoints. ``config`` is the provider's block: project, region, zone."""

    def __init__(self, config: State, environ: Mapping[str, str] = os.environ) -> None:
        """Take the settings; connections are made call by call."""
        self._config = config
        self._environ = environ

    def _call(self, service: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call ``path`` below the service's endpoint. Raises Missing, Conflict and Refused, in the provider's words."""
        base = urlsplit(self._environ[ENDPOINTS[service]])
        target = f"{base.path.rstrip('/')}/{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self._environ.get(TOKEN, '')}", "Content-Type": "application/json"}
        connection = HTTPConnection(base.hostname or "", base.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, None if body is None else json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        except (OSError, HTTPException) as error:
            message = f"{method} {path}: request send failed: {error}"
            raise Refused(message) from error
        finally:
            connection.close()
        if status >= 400:
            raise _refusal(status, content)
        return json.loads(content or b"{}")

    def _compute(self, method: str, path: str, body: Any = None) -> Any:
        return self._call("compute", method, path, body)

    def _done(self, doing: str, path: str, operation: Any) -> None:
        """Follow an operation on ``path`` to its end. Raises Refused with what it ended in."""
        scope = _SCOPE.match(path)
        assert scope is not None  # noqa: S101 - every compute path has one
        end = time.monotonic() + SETTLE_S
        while operation.get("status") != "DONE":
            if time.monotonic() > end:
                message = f"Error waiting for {doing}: timeout while waiting for state to become 'DONE'"
                raise Refused(message)
            time.sleep(POLL_S)
            operation = self._compute("GET", f"{scope[0]}/operations/{operation['name']}")
        if errors := (operation.get("error") or {}).get("errors"):
            message = f"Error waiting for {doing}: " + "\n".join(str(each.get("message", "")) for each in errors)
            raise Refused(message)


def _refusal(status: int, content: bytes) -> Refused:
    try:
        error = json.loads(content)["error"]
        reason = (error.get("errors") or [{}])[0].get("reason") or error.get("status", "")
        text = f"googleapi: Error {error.get('code', status)}: {error.get('message', '')}"
        text += f", {reason}" if reason else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        text = f"googleapi: got HTTP response code {status}"
    return {404: Missing, 409: Conflict, 412: Conflict}.get(status, Refused)(text)


def given(value: Any) -> bool:
    """Say whether an attribute was set."""
    return value is not Unknown and value not in (None, "", [], {})


def only_given(body: Mapping[str, Any]) -> State:
    """Return a request's body without what was not set."""
    return {name: value for name, value in body.items() if given(value)}


def one(value: Any) -> State:
    """Return the only block of a list of at most one."""
    return value[0] if value else {}


def relative(link: Any) -> str:
    """Return a self link from ``projects/`` on, so that links and ids compare."""
    text = str(link or "")
    at = text.find("projects/")
    return text[at:] if at >= 0 else text


def last(link: Any) -> str:
    """Return the last part of a link: a name."""
    return str(link or "").rpartition("/")[2]
