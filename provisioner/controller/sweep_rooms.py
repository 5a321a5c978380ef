"""Where a sweep looks: every account of every cloud and every store that this state directory has ever used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from provisioner.checkpoint import layout
from provisioner.clouds import open_cloud
from provisioner.clouds.base import Accounted, Cloud, Findings, Inventory, Tagged
from provisioner.config import Config, parse
from provisioner.controller.directory import JobDirectory
from provisioner.controller.launch import open_job_store, stored_uid
from provisioner.controller.orphans import MACHINE, RUNTIME, START, UNFINISHED, Known
from provisioner.controller.run import reopened_config
from provisioner.controller.survey import fallback_names
from provisioner.controller.sweep_litter import Litter, RuntimeRoom, UnfinishedRoom
from provisioner.errors import CloudError, ConfigError, FailoverError
from provisioner.model import Gpu, JobRef, Market, Node, Offer, Owned

_START: Final = re.compile(r"epochs/([0-9]{1,9})/bootstrap-([0-9a-f]{1,32})\.json")


class Room(Protocol):
    """A place that lists what is ours and lets it go."""

    def listed(self) -> Findings:
        """List it. Never raises for what cannot be asked: it is named."""
        ...

    def remove(self, tagged: Tagged) -> None:
        """Ask that one thing goes away; a machine is gone when this returns. Raises FailoverError."""
        ...


class AccountRoom:
    """One account of a cloud that lists what is ours of all jobs."""

    def __init__(self, cloud: Inventory) -> None:
        """Take the cloud as one job opened it."""
        self.regions: dict[str, None] = {}
        self._cloud = cloud
        self._own: dict[str, Inventory] = {}

    def join(self, cloud: Inventory, job: JobRef, regions: Sequence[str]) -> None:
        """Take along the regions of one more job, and its own way to the account."""
        self.regions |= dict.fromkeys(regions)
        self._own[job.uid] = cloud

    def listed(self) -> Findings:
        """List what every region holds."""
        return self._cloud.tagged(tuple(self.regions))

    def remove(self, tagged: Tagged) -> None:
        """Remove it as its own job would, which knows the bucket that an account has rights on."""
        cloud = self._own.get(tagged.uid, self._cloud) if tagged.thing.kind == "service_account" else self._cloud
        cloud.remove(tagged)


class JobRoom:
    """A cloud that lists one job's things alone."""

    def __init__(self, cloud: Cloud, job: JobRef) -> None:
        """Take the cloud as the job opened it."""
        self._cloud, self._job = cloud, job

    def listed(self) -> Findings:
        """List what the job has there."""
        try:
            return Findings(tuple(Tagged(thing, self._job.uid) for thing in self._cloud.owned()), {})
        except CloudError as error:
            return Findings((), {self._cloud.name: str(error)})

    def remove(self, tagged: Tagged) -> None:
        """Release a machine; all else is what ``dismantle`` removes, at the end of a run."""
        thing = tagged.thing
        if thing.kind != MACHINE:
            raise CloudError(f"{thing.cloud} removes a {thing.kind} only at the end of a run")
        offer = Offer(thing.cloud, thing.region, "", "", Gpu("", 0, 0), Market.ON_DEMAND, thing.price_per_hour)
        self._cloud.release(Node(thing.id, offer, self._job, thing.epoch or 0, thing.token, 0.0))


class StoreRoom:
    """The start objects of one job. They hold secrets, and are for one machine each."""

    def __init__(self, config: Config, job: JobRef, environ: Mapping[str, str]) -> None:
        """Take the job; ask nothing yet. Raises ConfigError for a store that cannot be opened."""
        self._store = open_job_store(config, environ)
        self._job = job

    def listed(self) -> Findings:
        """List them. The store's clock says when they were written."""
        try:
            stored = self._store.objects(layout.EPOCHS)
            uid = stored_uid(self._store) or self._job.uid
        except CloudError as error:
            return Findings((), {self._store.uri: str(error)})
        matches = [(one, match) for one in stored if (match := _START.fullmatch(one.key))]
        name = self._job.name
        return Findings(
            tuple(
                Tagged(
                    Owned("store", "", START, one.key, "there", name, int(match[1]), match[2]),
                    uid,
                    one.modified,
                    self._store.uri,
                )
                for one, match in matches
            ),
            {},
        )

    def remove(self, tagged: Tagged) -> None:
        """Remove one of them."""
        self._store.delete([tagged.thing.id])


class Rooms:
    """All rooms. ``silent`` says what could not be opened and so is not looked into, by place."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        """Take the state directory; open nothing yet."""
        self.silent: dict[str, str] = {}
        self.configs: dict[str, Config] = {}
        """The configuration of each job's last run, by the job's name."""
        self._root = root
        self._environ = environ
        self._rooms: dict[tuple[str, str], Room] = {}
        self.litter: dict[tuple[str, str], Litter] = {}
        """Rooms that know by themselves what is nobody's."""

    def __iter__(self) -> Iterator[Room]:
        """Go through the rooms."""
        return iter(self._rooms.values())

    def open(self, known: Known, file: Path | None) -> None:
        """Open what every run of every job used, and what a file names. Raises ConfigError for the file."""
        going_on = {job.record.name for job in known.jobs if job.record.open} | known.damaged.keys()
        for job in known.jobs:
            name, folder = job.record.name, Path(job.record.config_path).parent
            try:
                self.configs[name] = reopened_config(job.directory, job.record, self._environ)
                store = StoreRoom(self.configs[name], job.record.ref, self._environ)
                self._rooms.setdefault(("store", name), store)
                self._open_litter(self.configs[name], job.record.ref, going_on)
            except ConfigError as error:
                self.silent[f"the store of {name}"] = str(error)
            kept = sorted(job.directory.path.glob("failover.*.yaml"))
            for path in kept:
                try:
                    self._open_clouds(self._parsed(path, folder), job.record.ref, job.directory)
                except ConfigError as error:  # an older release wrote it, say
                    self.silent[str(path)] = str(error)
            if not kept and name in self.configs:
                self._open_clouds(self.configs[name], job.record.ref, job.directory)
        if file is not None:
            config = self._parsed(file, file.parent)
            record = next((job.record for job in known.jobs if job.record.name == config.job.name), None)
            job_ref = record.ref if record is not None else JobRef(config.job.name, "0" * 8)
            self._open_clouds(config, job_ref, JobDirectory(self._root, config.job.name))

    def _open_litter(self, config: Config, job: JobRef, going_on: Collection[str]) -> None:
        own = open_job_store(config, self._environ)
        above = own.above()
        self.litter[UNFINISHED, own.uri] = UnfinishedRoom(own, job)
        self.litter[UNFINISHED, above.uri] = UnfinishedRoom(above, None)
        self.litter[RUNTIME, above.uri] = RuntimeRoom(above, going_on)

    def _parsed(self, path: Path, folder: Path) -> Config:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror or error}", hint="name another one: failover sweep FILE"
            ) from error
        return parse(content, str(path), folder, self._environ, for_start=False)

    def _open_clouds(self, config: Config, job: JobRef, directory: JobDirectory) -> None:
        for name in [*(["autodl"] if config.primary else []), *fallback_names(config)]:
            try:
                cloud = open_cloud(name, job=job, config=config, directory=directory.path, environ=self._environ)
            except FailoverError as error:
                self.silent[name] = str(error)
                continue
            if not isinstance(cloud, Inventory):
                self._rooms.setdefault((name, f"{job.name}-{job.uid}"), JobRoom(cloud, job))
                continue
            key = (name, cloud.account if isinstance(cloud, Accounted) else "")
            room = self._rooms.setdefault(key, AccountRoom(cloud))
            if isinstance(room, AccountRoom):
                room.join(cloud, job, _regions(name, config, directory))


def _regions(name: str, config: Config, directory: JobDirectory) -> list[str]:
    """Return the regions that a configuration names, and those that have a stack in the job's folder."""
    blocks = [getattr(entry, name, None) for entry in config.fallback]
    named = [region for block in blocks for region in getattr(block, "regions", ())]
    stacks = sorted((directory.path / "terraform").glob(f"{name}-*"))
    return [*named, *(path.name.removeprefix(f"{name}-") for path in stacks if path.is_dir())]
