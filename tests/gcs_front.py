"""The XML API of Google Cloud Storage before fake-gcs-server: `python tests/gcs_front.py HOST:PORT` prints its port.

obstore (object_store) speaks the XML API, as Google's own C++ library does for bulk data. fake-gcs-server 1.54 reads
and lists by it, but knows neither PUT nor DELETE of it (fsouza/fake-gcs-server#331): these two are turned into the JSON
API here, with the precondition. Whether that holds is decided by the server, not here. The JSON API, which Terraform
speaks, passes as it is.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_PASSED_BACK = {"content-type", "content-range", "etag", "last-modified", "x-goog-generation", "x-goog-hash"}
_JSON_API = ("/storage/v1/", "/upload/")
_OF_THE_LINE = {"transfer-encoding", "content-length", "connection", "host", "accept-encoding"}
_SEAM = b"b2f3c0d59e7a4b1c8d6e"  # does not occur in random data


class Front(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, backend: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = backend
        self.local = threading.local()

    def ask(self, verb: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        """Ask the server, over a connection that this thread keeps."""
        connection = getattr(self.local, "connection", None)
        if connection is None:
            connection = self.local.connection = http.client.HTTPConnection(self.backend, timeout=60)
        try:
            connection.request(verb, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        except (OSError, http.client.HTTPException):
            connection.close()
            self.local.connection = None
            raise


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Front

    def _serve(self) -> None:
        body = self._body()
        if self.path.startswith(_JSON_API):
            sent = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_LINE}
            self._answer(*self.server.ask(self.command, self.path, body, sent))
            return
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path.lstrip("/")).partition("/")
        if self.command == "PUT" and key:
            self._put(bucket, key, body)
        elif self.command == "DELETE" and key:
            status, answer, headers = self.server.ask("DELETE", _json_path(bucket, key), b"", {})
            self._answer(*((204, b"", {}) if status in {200, 204} else (status, answer, headers)))
        else:
            asked = {name: self.headers[name] for name in ("Range",) if name in self.headers}
            self._answer(*self.server.ask(self.command, self.path, body, asked))

    def _body(self) -> bytes:
        """Read what was sent, also in chunks, as Google's library for Go sends it."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = []
        while size := int(self.rfile.readline(), 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def _put(self, bucket: str, key: str, body: bytes) -> None:
        # Not uploadType=media: there the server looks at no precondition.
        path = f"/upload/storage/v1/b/{quote(bucket)}/o?uploadType=multipart"
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None:
            path += f"&ifGenerationMatch={generation}"
        kind = self.headers.get("Content-Type") or "application/octet-stream"
        described = json.dumps({"name": key, "contentType": kind}).encode()
        head = b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n--%b\r\nContent-Type: %b\r\n\r\n"
        parts = [head % (_SEAM, described, _SEAM, kind.encode()), body, b"\r\n--%b--" % _SEAM]
        sent = {"Content-Type": f"multipart/related; boundary={_SEAM.decode()}"}
        status, answer, headers = self.server.ask("POST", path, b"".join(parts), sent)
        if status == 200:
            made = json.loads(answer)
            headers = {"etag": made.get("etag") or made["md5Hash"], "x-goog-generation": str(made["generation"])}
            answer = b""
        self._answer(status, answer, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name in _PASSED_BACK:
                self.send_header(name, value)
        length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        pass


def _json_path(bucket: str, key: str) -> str:
    return f"/storage/v1/b/{quote(bucket)}/o/{quote(key, safe='')}"


if __name__ == "__main__":
    front = Front(sys.argv[1])
    print(front.server_port, flush=True)
    front.serve_forever()
