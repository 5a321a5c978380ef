"""The tools that `transfer.py` measures, each with the settings that were best for it in trials on two cores.

Ours is `failover checkpoint push` and `pull`, as anybody types it: hashes are taken and checked on the way. s5cmd and
rclone are programs. boto3 and obstore are libraries, so they are this file, started with NAME put|get DIRECTORY BUCKET
PREFIX SETTINGS: start-up counts for all. A tree goes below a prefix and comes back into an empty directory. Where the
server is and with which key, the AWS_* variables of the environment say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import S3Store

MIB = 2**20
OURS = "gpu-failover"
NAMES = (OURS, "s5cmd", "rclone", "boto3", "obstore")


@dataclass(frozen=True, slots=True)
class Settings:
    """``jobs``: files at once; ``parts``: parts of one file at once; ``part_mib``: their size, and the threshold."""

    jobs: int
    parts: int = 16
    part_mib: int = 16


BEST: dict[str, dict[str, Settings]] = {
    "s5cmd": {"one": Settings(16, 16, 16), "many": Settings(32, 4, 16), "small": Settings(64)},
    "rclone": {"one": Settings(16, 16, 16), "many": Settings(32, 4, 16), "small": Settings(64)},
    "boto3": {"one": Settings(1, 16, 16), "many": Settings(16, 4, 16), "small": Settings(32)},
    "obstore": {"one": Settings(1, 16, 16), "many": Settings(16, 4, 16), "small": Settings(64)},
}
"""By name and by shape of the tree: one big file, many of some MiB, thousands of small ones."""


def command(
    name: str, verb: str, directory: Path, bucket: str, prefix: str, shape: str, program: Callable[[str], str]
) -> list[str]:
    """Return the command that puts ``directory`` below the prefix, or gets it back; settings are those of ``shape``."""
    if name == OURS:
        uri = f"s3://{bucket}/{prefix}"
        words = ["push", "--json", str(directory), uri] if verb == "put" else ["pull", "--json", uri, str(directory)]
        return [str(Path(sys.executable).with_name("failover")), "checkpoint", *words]
    settings = BEST[name][shape]
    if name == "s5cmd":
        return _s5cmd(verb, directory, f"s3://{bucket}/{prefix}/", settings, program(name))
    if name == "rclone":
        return _rclone(verb, directory, f":s3:{bucket}/{prefix}", settings, program(name))
    return [sys.executable, __file__, name, verb, str(directory), bucket, prefix, json.dumps(asdict(settings))]


def environ(name: str, endpoint: str) -> dict[str, str]:
    """Return what a program needs beside the AWS_* variables."""
    if name == "s5cmd":
        return {"S3_ENDPOINT_URL": endpoint}
    if name == "rclone":
        return {"RCLONE_CONFIG": os.devnull, "RCLONE_S3_ENV_AUTH": "true", "RCLONE_S3_ENDPOINT": endpoint}
    return {}


def _s5cmd(verb: str, directory: Path, remote: str, settings: Settings, program: str) -> list[str]:
    from_to = [f"{directory}/", remote] if verb == "put" else [f"{remote}*", f"{directory}/"]
    return [
        *(program, "--log", "error", "--numworkers", str(settings.jobs)),
        *("cp", "--concurrency", str(settings.parts), "--part-size", str(settings.part_mib), *from_to),
    ]


def _rclone(verb: str, directory: Path, remote: str, settings: Settings, program: str) -> list[str]:
    part = f"{settings.part_mib}Mi"
    return [
        *(program, "copy", *((str(directory), remote) if verb == "put" else (remote, str(directory)))),
        *("--transfers", str(settings.jobs), "--checkers", str(settings.jobs)),
        *("--s3-upload-concurrency", str(settings.parts), "--s3-chunk-size", part, "--s3-upload-cutoff", part),
        *("--multi-thread-streams", str(settings.parts), "--multi-thread-cutoff", part),
        *("--multi-thread-chunk-size", part, "--multi-thread-write-buffer-size", "1Mi"),
        # What it does beside the transfer, and can do without: hashes, HEADs, listing the target, setting times.
        *("--no-check-dest", "--ignore-checksum", "--s3-disable-checksum", "--s3-no-check-bucket", "--fast-list"),
        *("--use-server-modtime", "--no-update-modtime", "--s3-use-unsigned-payload", "true"),
        # After a multipart upload it takes the size for 0 with this, and starts anew.
        *(["--s3-no-head-object"] if verb == "get" else []),
        *("--s3-provider", "Other", "--stats", "0"),
    ]


def _tree(directory: Path) -> Iterator[tuple[str, str, int]]:
    """Yield (path, name below the directory, size) of every file."""
    folders = [str(directory)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    yield entry.path, os.path.relpath(entry.path, directory), entry.stat().st_size


def _each(work: Callable[..., object], items: Iterable[tuple[Any, ...]], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(work, *item) for item in items]:
            result.result()


def boto3_tool(verb: str, directory: Path, bucket: str, prefix: str, settings: Settings) -> None:
    """Run boto3's transfer manager, one for all files: its threads are shared out over files and parts."""
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    from botocore.config import Config

    threads = max(settings.jobs, settings.parts)
    client = boto3.client(
        "s3",
        config=Config(
            max_pool_connections=threads + 4,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": "path"},
        ),
    )
    config = TransferConfig(
        max_concurrency=threads,
        multipart_threshold=settings.part_mib * MIB,
        multipart_chunksize=settings.part_mib * MIB,
        io_chunksize=MIB,
        preferred_transfer_client="classic",
    )
    with create_transfer_manager(client, config) as manager:
        if verb == "put":
            futures = [manager.upload(path, bucket, f"{prefix}/{name}") for path, name, _ in _tree(directory)]
        else:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
            futures = []
            for item in (item for page in pages for item in page.get("Contents", ())):
                target = directory / item["Key"].removeprefix(f"{prefix}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                futures.append(manager.download(bucket, item["Key"], str(target)))
        for future in futures:
            future.result()


def obstore_tool(verb: str, directory: Path, bucket: str, prefix: str, settings: Settings) -> None:
    """Run obstore as its documentation shows it, in parallel over files, and over parts of the large ones."""
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "unsigned_payload": True},
        client_options={"allow_http": True},
    )
    (_obstore_put if verb == "put" else _obstore_get)(store, directory, prefix, settings)


def _obstore_put(store: S3Store, directory: Path, prefix: str, settings: Settings) -> None:
    import obstore

    part = settings.part_mib * MIB

    def put(path: str, name: str, size: int) -> None:
        large = size > part
        data = Path(path) if large else Path(path).read_bytes()
        key = f"{prefix}/{name}"
        obstore.put(store, key, data, use_multipart=large, chunk_size=part, max_concurrency=settings.parts)

    _each(put, _tree(directory), settings.jobs)


def _obstore_get(store: S3Store, directory: Path, prefix: str, settings: Settings) -> None:
    import obstore
    from obstore.exceptions import GenericError

    part = settings.part_mib * MIB

    def get_part(key: str, target: int, start: int, length: int) -> None:
        data = memoryview(obstore.get_range(store, key, start=start, length=length))
        while data:
            written = os.pwrite(target, data, start)
            start += written
            data = data[written:]

    def get_whole(key: str, target: Path, tries: int = 3) -> None:
        try:
            with target.open("wb") as file:
                for chunk in obstore.get(store, key).stream(min_chunk_size=MIB):
                    file.write(chunk)
        except GenericError:  # rclone's server ends a body too early now and then, and a rest cannot be had from it
            if tries == 1:
                raise
            get_whole(key, target, tries - 1)

    found = [
        (meta["path"], directory / meta["path"].removeprefix(f"{prefix}/"), meta["size"])
        for page in obstore.list(store, f"{prefix}/", chunk_size=1000)
        for meta in page
    ]
    for folder in {target.parent for _, target, _ in found}:
        folder.mkdir(parents=True, exist_ok=True)
    large = [item for item in found if item[2] > part]
    if large and not _answers_ranges(store, large[0][0]):
        large = []
    whole = {key for key, _, _ in found} - {key for key, _, _ in large}
    threads = max(settings.jobs, settings.parts)
    _each(get_whole, ((key, target) for key, target, _ in found if key in whole), threads)
    parts = []
    for key, target, size in large:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)
        parts += [(key, descriptor, start, min(part, size - start)) for start in range(0, size, part)]
    _each(get_part, parts, threads)


def _answers_ranges(store: S3Store, key: str) -> bool:
    """Say whether parts can be had: rclone's server sends them with status 200, and obstore refuses that."""
    import obstore
    from obstore.exceptions import GenericError

    try:
        obstore.get_range(store, key, start=0, length=1)
    except GenericError:
        return False
    return True


def main() -> int:
    """Do one transfer."""
    name, verb, directory, bucket, prefix, settings = sys.argv[1:]
    tool = {"boto3": boto3_tool, "obstore": obstore_tool}[name]
    tool(verb, Path(directory), bucket, prefix, Settings(**json.loads(settings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
