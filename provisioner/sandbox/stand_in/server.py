"""The plug-in side of Terraform's handshake (go-plugin), kept lean: Terraform starts a provider three times a run.

PyPI's ``tf`` has a runner too; it loads a certificate library and more at every start, and keeps a key in the user's
home.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final

# The asynchronous half of grpc takes as long to load as all the rest, and nothing here uses it.
sys.modules.setdefault("grpc.aio", ModuleType("grpc.aio"))

import grpc  # type: ignore[import-untyped]  # noqa: E402
from tf.gen import grpc_controller_pb2 as controller_pb  # noqa: E402
from tf.gen import grpc_controller_pb2_grpc as controller_rpc  # noqa: E402
from tf.gen import grpc_stdio_pb2_grpc as stdio_rpc  # noqa: E402
from tf.gen import tfplugin_pb2_grpc as rpc  # noqa: E402

DIRECTORY: Final = "FAILOVER_STAND_IN_DIRECTORY"
_VALID_S: Final = 7 * 86400
_ORPHAN_POLL_S: Final = 1.0


def serve(servicer: rpc.ProviderServicer) -> None:
    """Serve until Terraform says stop, or is gone."""
    stop = threading.Event()

    class Controller(controller_rpc.GRPCControllerServicer):  # type: ignore[misc]
        def Shutdown(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            stop.set()
            return controller_pb.Empty()

    class Stdio(stdio_rpc.GRPCStdioServicer):  # type: ignore[misc]
        def StreamStdio(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return iter(())

    terraform = os.getppid()
    server = grpc.server(ThreadPoolExecutor(max_workers=10))
    rpc.add_ProviderServicer_to_server(servicer, server)
    controller_rpc.add_GRPCControllerServicer_to_server(Controller(), server)
    stdio_rpc.add_GRPCStdioServicer_to_server(Stdio(), server)
    identity = _identity(Path(os.environ.get(DIRECTORY) or tempfile.gettempdir()))
    pair = (identity["key"].encode(), identity["certificate"].encode())
    with tempfile.TemporaryDirectory(prefix="stand-in-") as folder:
        server.add_secure_port(f"unix://{folder}/plugin", grpc.ssl_server_credentials([pair]))
        server.start()
        # go-plugin's handshake: its version, Terraform's protocol, where, how, and the certificate to expect.
        sys.stdout.write(f"1|6|unix|{folder}/plugin|grpc|{identity['der']}\n")
        sys.stdout.flush()
        while not stop.wait(_ORPHAN_POLL_S) and os.getppid() == terraform:
            pass
        server.stop(0.5).wait()


def _identity(directory: Path) -> dict[str, Any]:
    """Return key and certificate for the socket, made once a week and readable by their owner only."""
    path = directory / "plugin-identity.json"
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["expires"] > time.time() + 3600:
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    made = _new_identity()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(made, file)
    draft.replace(path)
    return made


def _new_identity() -> dict[str, Any]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # Terraform's clock may be behind ours, in a storm by hours
        .not_valid_after(now + timedelta(seconds=_VALID_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        "certificate": certificate.public_bytes(serialization.Encoding.PEM).decode(),
        "der": base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode().rstrip("="),
        "expires": time.time() + _VALID_S,
    }
