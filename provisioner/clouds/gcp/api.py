"""One Google Cloud project: credentials, clients, time-outs, and retries that know which errors are worth one.

Google's libraries are imported with the first call: that takes three seconds, and a job at AWS alone has no need of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential, wait_random

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp import answers
from provisioner.clouds.gcp.errors import NotThere, Refused, error_of
from provisioner.clouds.gcp.reading import failure_of
from provisioner.clouds.meaning import passing
from provisioner.model import FailureKind

T = TypeVar("T")
CALL_S: Final = 20.0
"""How long one call may take to connect, and again to answer."""
READ_FOR_S: Final = 30.0
"""How long a call that may be repeated is, while Google throttles or cannot be reached."""
ENDPOINT: Final = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT"
LOOK_AGAIN_S: Final = 60.0
TOKEN: Final = "GOOGLE_OAUTH_ACCESS_TOKEN"  # noqa: S105 - a variable's name, Terraform's own
KEY_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_NOT_OF_A_THING: Final = frozenset({FailureKind.UNAUTHORIZED, FailureKind.NETWORK})
"""What a 404 may be about besides the thing that was asked for: the project itself, a proxy on the way."""
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_ENDPOINTS: Final = {
    "compute": (ENDPOINT, "https://compute.googleapis.com/compute/v1/"),
    "iam": ("GOOGLE_IAM_CUSTOM_ENDPOINT", "https://iam.googleapis.com/v1/"),
    "storage": ("GOOGLE_STORAGE_CUSTOM_ENDPOINT", "https://storage.googleapis.com/storage/v1/"),
}


class Account:
    """One project, as the operator's credentials see it. Credentials and endpoints are those of Google's own tools."""

    def __init__(self, project: str, environ: Mapping[str, str], clock: Clock | None = None) -> None:
        """Hold the parts; ask nothing and import nothing yet."""
        self.project = project
        self.clock = clock or Clock()
        self._environ = environ
        self._credentials: Any = None
        self._missing: tuple[float, Exception | None] = (0.0, None)
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._lock = threading.RLock()

    def once(self, call: Callable[[], T]) -> T:
        """Run a call. Raises Refused and its kin, with Google's own reason as ``failure``."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
        from requests.exceptions import RequestException

        try:
            return call()
        except (GoogleAPIError, GoogleAuthError, RequestException, ParseError) as error:
            problems = answers.of_error(error)
            raise error_of(failure_of(problems, project=self.project), problems[0].status) from error
        except (AttributeError, TypeError, ValueError) as error:  # Google's library, of JSON that is a proxy's
            raise error_of(failure_of(answers.no_answer(error))) from error

    def call(self, call: Callable[[], T], for_s: float = READ_FOR_S) -> T:
        """Run a call that may be repeated, while its error is one that passes.

        Raises NotThere for what is not there, else Refused and its kin.
        """
        retrying = Retrying(
            retry=retry_if_exception(_passing),
            stop=stop_after_delay(for_s),
            wait=wait_exponential(multiplier=0.5, max=8.0) + wait_random(0, 0.5),
            sleep=self.clock.sleep,
            reraise=True,
        )
        try:
            answer: T = retrying(self.once, call)
        except Refused as error:
            if error.status == 404 and error.failure.kind not in _NOT_OF_A_THING:
                raise NotThere(error.failure, error.status) from error
            raise
        return answer

    def compute(self, client: str, method: str, request: Mapping[str, Any]) -> Any:
        """Call a method of google-cloud-compute once, e.g. ``("InstancesClient", "get", {"zone": ...})``.

        The project is added. A paged method gives its pager, which asks on while it is read: read it within the call.
        """
        asked = {"project": self.project, **request}
        return getattr(self._client(client), method)(request=asked, retry=None, timeout=CALL_S)

    def post_compute(self, path: str, body: object, query: Mapping[str, str]) -> Any:
        """Post JSON to Compute Engine once, below the project; return the answer of ``requests``, a refusal too."""
        url = f"{self._endpoint('compute')}projects/{self.project}/{path}"
        return self._http_session().request("POST", url, json=body, params=dict(query), timeout=CALL_S)

    def http(self, method: str, service: str, path: str, body: object = None) -> Any:
        """Call ``iam`` or ``storage``, which need no library of their own; return the JSON of the answer.

        Raises NotThere for what is not there, else Refused and its kin.
        """
        url = self._endpoint(service) + path

        def ask() -> Any:
            answer = self.once(partial(self._http_session().request, method, url, json=body, timeout=CALL_S))
            told = _object(answer)
            if answer.status_code >= 400:
                problems = answers.of_answer(answer.status_code, told)
                raise error_of(failure_of(problems, project=self.project), answer.status_code)
            if told is None:
                raise error_of(failure_of(answers.no_answer(f"HTTP {answer.status_code} without an object")))
            return told

        return self.call(ask)

    def _client(self, name: str) -> Any:
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._make(name)
            return self._clients[name]

    def _make(self, name: str) -> Any:
        from google.api_core.client_options import ClientOptions
        from google.cloud import compute_v1

        variable, _ = _ENDPOINTS["compute"]
        url = urlsplit(self._environ.get(variable) or "")
        options = ClientOptions(api_endpoint=f"{url.scheme}://{url.netloc}") if url.netloc else None
        return getattr(compute_v1, name)(credentials=self._credentials_found(), client_options=options)

    def _http_session(self) -> Any:
        with self._lock:
            if self._session is None:
                from google.auth.transport.requests import AuthorizedSession

                make: Any = AuthorizedSession
                self._session = make(self._credentials_found())
            return self._session

    def _endpoint(self, service: str) -> str:
        variable, ordinary = _ENDPOINTS[service]
        return (self._environ.get(variable) or ordinary).rstrip("/") + "/"

    def _credentials_found(self) -> Any:
        """Return the credentials: a ready token, a key file, or what Google's own library finds."""
        with self._lock:
            if self._credentials is None:
                found = self._find_credentials()
                if isinstance(found, Exception):
                    raise found
                self._credentials = found
            return self._credentials

    def _find_credentials(self) -> Any:
        """Look for credentials; that there are none takes Google's library many seconds, so it is kept for a minute."""
        import google.auth
        from google.auth.exceptions import GoogleAuthError

        token = self._environ.get(TOKEN)
        if token:
            return _ready(token)
        since, missing = self._missing
        if missing is not None and self.clock.tick() - since < LOOK_AGAIN_S:
            return missing
        path = self._environ.get(KEY_FILE)
        library: Any = google.auth
        try:
            found, _ = library.load_credentials_from_file(path, [_SCOPE]) if path else library.default([_SCOPE])
        except GoogleAuthError as error:
            self._missing = (self.clock.tick(), error)
            raise
        return found


def _ready(token: str) -> Any:
    """Return credentials of a token that nobody can renew, and that say so when Google refuses it."""
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials

    base: Any = Credentials

    class Ready(base):  # type: ignore[misc] # Google's class has no types
        def refresh(self, request: Any) -> None:
            del request
            ended: Any = RefreshError
            raise ended(f"the token in {TOKEN} is wrong, or has ended")

    return Ready(token)


def _object(answer: Any) -> dict[str, Any] | None:
    """Return the JSON object of an answer; None: it is none. What was deleted may be answered with nothing."""
    if not answer.content and answer.request.method != "GET":
        return {}
    try:
        told = answer.json()
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _passing(error: BaseException) -> bool:
    return isinstance(error, Refused) and passing(error.failure)
