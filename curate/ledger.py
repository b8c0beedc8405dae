"""What is done already: staged clips and closed sources, kept beside the dataset until it is published."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from curate.inputs import SourceRef
from curate.records import Record
from loader.storage.base import Storage

WORK = ".work/"


@dataclass(frozen=True)
class Ledger:
    """Work done under one configuration. Every entry appears whole or not at all and may be written twice.

    Attributes:
        storage: of the dataset being made.
        fingerprint: of the configuration that decides clips and captions; another one starts afresh.
    """

    storage: Storage
    fingerprint: str

    def begin(self, config: Any) -> None:
        """Writes the configuration beside the work; a place that cannot be written to fails here, not later."""
        self.storage.write(f"{self._place}/config.json", json.dumps(config, indent=1).encode())

    def write_clip(self, key: str, data: bytes) -> None:
        """Stages an encoded clip."""
        self.storage.write(self._path("clips", f"{key}.mp4"), data)

    def read_clip(self, key: str) -> bytes:
        """A staged clip."""
        return self.storage.read(self._path("clips", f"{key}.mp4"))

    def close_source(self, source: SourceRef, records: list[Record]) -> None:
        """Says that all records of a source are known and all its clips are staged."""
        body = {"source": source.uri, "records": [record.to_row() for record in records]}
        self.storage.write(self._path("sources", f"{_source_id(source)}.json"), json.dumps(body).encode())

    def closed_sources(self, sources: list[SourceRef]) -> dict[str, list[Record]]:
        """Records of those sources that are closed, by URI."""
        by_id = {_source_id(source): source for source in sources}
        closed = {}
        for name, body in self._entries("sources"):
            if source := by_id.get(name):
                closed[source.uri] = [Record.from_row(row) for row in body["records"]]
        return closed

    def close_shard(self, plan_id: str, record: dict[str, Any]) -> None:
        """Says that a shard is written; ``plan_id`` names what it was planned to hold."""
        self.storage.write(self._path("shards", f"{plan_id}.json"), json.dumps(record).encode())

    def closed_shards(self) -> dict[str, dict[str, Any]]:
        """Records of written shards by plan id."""
        return dict(self._entries("shards"))

    def clear(self) -> None:
        """Removes all work in progress, of other configurations too."""
        self.storage.delete_tree(WORK)

    def _entries(self, kind: str) -> Iterator[tuple[str, Any]]:
        for item in self.storage.list(self._path(kind, "")):
            name = item.path.rsplit("/", 1)[-1].removesuffix(".json")
            yield name, json.loads(self.storage.read(item.path))

    @property
    def _place(self) -> str:
        return f"{WORK}{self.fingerprint}"

    def _path(self, kind: str, name: str) -> str:
        return f"{self._place}/{kind}/{name}"


def _source_id(source: SourceRef) -> str:
    identity = f"{source.uri}\0{source.size}\0{source.version}\0{source.caption}"
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
