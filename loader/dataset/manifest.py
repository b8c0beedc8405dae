"""``manifest.json``: what a dataset is, said last, so that a dataset is visible whole or not at all."""

import hashlib
import json
from collections import Counter
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from loader.dataset.latents import Latents
from loader.dataset.schema import FORMAT_VERSION, STATES
from loader.errors import RunError
from loader.storage.base import Storage

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 * 2**20


class ShardEntry(BaseModel, frozen=True, extra="forbid"):
    """One shard as the manifest lists it.

    ``qualified`` shards are tars of somebody else whose keys repeat elsewhere: their samples go by shard and key.
    """

    path: str
    size: int
    sha256: str
    samples: int
    qualified: bool = Field(default=False, exclude_if=lambda qualified: not qualified)

    @property
    def key_prefix(self) -> str:
        """Prefix that makes the keys in this tar unique over all tars; empty where they are already."""
        return qualifier(self.path) if self.qualified else ""


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """One other file of the dataset."""

    path: str
    size: int
    sha256: str


class Totals(BaseModel, frozen=True, extra="forbid"):
    """Sums a person asks for first; ``accounting`` counts rows per state."""

    samples: int
    sources: int
    duration_s: float
    clip_bytes: int
    accounting: dict[str, int]


class RemovedSpan(BaseModel, frozen=True, extra="forbid"):
    """Where a sample lay that was taken down: seconds of a source, by its URI and, where known, its content."""

    source: str
    source_sha256: str = ""
    start_s: float
    end_s: float


class Removal(BaseModel, frozen=True, extra="forbid"):
    """What was taken down: a source or one sample, when (ISO date), why, and how many samples went.

    ``span`` keeps the same seconds out when they are cut otherwise; null where a source went, or nothing is known.
    """

    source: str | None = None
    key: str | None = None
    date: str
    reason: str
    samples: int
    span: RemovedSpan | None = None


class Foreign(BaseModel, frozen=True, extra="forbid"):
    """The tars were written by somebody else: they are only ever read.

    ``uri`` is the folder or prefix they lie in; null where that is the dataset's own.
    """

    uri: str | None = None


class Ancestor(BaseModel, frozen=True, extra="forbid"):
    """An earlier revision whose samples ``history.arrow`` still tells."""

    revision: int
    index_sha256: str


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """The content of ``manifest.json``. ``revision`` counts the changes since the dataset was first published."""

    format: str = "reelweave-dataset"
    format_version: int = FORMAT_VERSION
    revision: int = 0
    totals: Totals
    shards: list[ShardEntry]
    files: list[FileEntry]
    config: dict[str, Any]
    versions: dict[str, str]
    removals: list[Removal] = []
    foreign: Foreign | None = None
    latents: Latents | None = None
    ancestors: list[Ancestor] = Field(default=[], exclude_if=lambda ancestors: not ancestors)

    def to_bytes(self) -> bytes:
        """JSON for people, closed by a checksum of everything before it."""
        # What only some datasets have is not said of the others, whose bytes stay what they were.
        absent = {name for name in ("foreign", "latents") if getattr(self, name) is None}
        body = self.model_dump(exclude=absent)
        return json.dumps({**body, "sha256": _digest(body)}, indent=1, ensure_ascii=False).encode()

    @property
    def index_sha256(self) -> str:
        """The fingerprint of the index, which fixes the whole content of the dataset."""
        return self.table("index").sha256

    def table(self, name: str) -> FileEntry:
        """The entry of table "index", "accounting" or "scores"."""
        path = table_path(name, self.revision)
        return next(file for file in self.files if file.path == path)

    @property
    def plan_index(self) -> FileEntry | None:
        """The entry of the plan index; None where a dataset was written without one."""
        path = plan_path(self.revision)
        return next((file for file in self.files if file.path == path), None)


def qualifier(tar: str) -> str:
    """Return the prefix of keys that are qualified by their tar: its path without ``.tar``, and a slash."""
    return f"{tar.removesuffix('.tar')}/"


def table_path(name: str, revision: int) -> str:
    """Where a table lies: ``index.parquet``, and ``index.000001.parquet`` after the first change.

    A change writes its tables under new names, so that a reader sees the old dataset or the new one, whole.
    """
    return _revised(name, revision, "parquet")


def plan_path(revision: int) -> str:
    """Where the plan index lies: ``plan.arrow``, and ``plan.000001.arrow`` after the first change."""
    return _revised("plan", revision, "arrow")


def history_path(revision: int) -> str:
    """Where the history lies: ``history.000001.arrow`` after the first change; the first revision has none."""
    return _revised("history", revision, "arrow")


def count_states(states: list[str]) -> dict[str, int]:
    """Rows per state, every state named."""
    counts = Counter(states)
    return {state: counts[state] for state in STATES}


def read_manifest(storage: Storage) -> Manifest:
    """The dataset's manifest.

    Raises:
        RunError: there is no finished dataset here, or its manifest is damaged or of another format.
    """
    where = storage.uri(MANIFEST)
    info = storage.stat(MANIFEST)
    if info is None:
        raise RunError(
            f"{storage.root} is no finished dataset: it has no {MANIFEST}; "
            "if its curation was interrupted, run the same command again"
        )
    if info.size > MAX_MANIFEST_BYTES:
        raise RunError(
            f"{where} has {info.size} bytes, more than the {MAX_MANIFEST_BYTES} a manifest may have"
        )
    try:
        body = json.loads(storage.read(MANIFEST))
        checksum = body.pop("sha256")
        version = body.get("format_version")
        if version != FORMAT_VERSION:
            raise RunError(f"{where} has format version {version}; this code reads version {FORMAT_VERSION}")
        manifest = Manifest.model_validate(body)
    except (ValueError, KeyError, AttributeError, TypeError, ValidationError) as error:
        raise RunError(f"{where} is damaged: {str(error).splitlines()[0]}") from error
    if checksum != _digest(body):
        raise RunError(f"{where} is damaged: its own checksum does not match")
    return manifest


def sha256(data: bytes | memoryview) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def _revised(name: str, revision: int, suffix: str) -> str:
    return f"{name}.{suffix}" if revision == 0 else f"{name}.{revision:06d}.{suffix}"


def _digest(body: dict[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
