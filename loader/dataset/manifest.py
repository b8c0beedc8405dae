"""Manifest, ``manifest.json``: content and checksums, written last so that a dataset appears whole or not at all."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, StringConstraints, ValidationError

from reelweave.loader.base.strict_json import digest, parse
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.schema import FORMAT_VERSION, FURTHER_TABLES, STATES, TABLES
from reelweave.loader.dataset.tars.mds import MdsColumns
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.names import check_path
from reelweave.loader.storage.opening import is_absent

MANIFEST = "manifest.json"
SEARCH = ".search/"
"""Folder of search indices, which belong to one revision each."""
MDS = "mds"
"""Key of the columns of MDS in the section ``index`` of a manifest's configuration."""
MAX_MANIFEST_BYTES = 256 * 2**20

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]

Size = Annotated[int, Field(ge=0, lt=2**62)]
"""Bytes or counts that fit int64 columns."""

_SHARD = re.compile(r"shards/\d{6,18}(-[0-9a-f]{1,64})?\.tar")

REMOVAL_STAGE = "removal"
"""Stage of removed samples in the accounting."""


class ShardEntry(BaseModel, frozen=True, extra="forbid"):
    """Manifest entry of one shard.

    ``qualified`` shards are tars of other origin whose keys repeat elsewhere; shard and key identify their samples.
    """

    path: str
    size: Size
    sha256: Sha256
    samples: Size
    qualified: bool = Field(default=False, exclude_if=lambda qualified: not qualified)

    @property
    def key_prefix(self) -> str:
        """Prefix that makes the tar's keys unique over all tars; empty if they are already."""
        return qualifier(self.path) if self.qualified else ""


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """Manifest entry of one file other than a shard."""

    path: str
    size: Size
    sha256: Sha256


class Totals(BaseModel, frozen=True, extra="forbid"):
    """Totals of a dataset; ``accounting`` counts rows by state."""

    samples: Size
    sources: Size
    duration_s: float = Field(ge=0, allow_inf_nan=False)
    clip_bytes: Size
    accounting: dict[str, Size]


class RemovedSpan(BaseModel, frozen=True, extra="forbid"):
    """Location of a removed sample: seconds of a source, by its URI and, if known, its checksum."""

    source: str
    source_sha256: str = ""
    start_s: FiniteFloat
    end_s: FiniteFloat


class Removal(BaseModel, frozen=True, extra="forbid"):
    """Take-down of a source or one sample: date (ISO), reason, and number of removed samples.

    ``span`` excludes the same seconds under other cuts; null for sources, or if unknown.
    """

    source: str | None = None
    key: str | None = None
    date: str
    reason: str
    samples: Size
    span: RemovedSpan | None = None

    @property
    def words(self) -> str:
        """Reason in the accounting."""
        return f"taken down on {self.date}: {self.reason}"


class Foreign(BaseModel, frozen=True, extra="forbid"):
    """Tars of other origin, which are only read.

    ``uri`` is their folder or prefix; null if it is the dataset's own.
    """

    uri: str | None = None


class Ancestor(BaseModel, frozen=True, extra="forbid"):
    """Earlier revision whose samples ``history.arrow`` records."""

    revision: NonNegativeInt
    index_sha256: Sha256


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """Content of ``manifest.json``; ``revision`` counts the changes since the first publication."""

    format: str = "reelweave-dataset"
    format_version: int = FORMAT_VERSION
    revision: int = Field(default=0, ge=0, lt=10**6)
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
        """Return readable JSON, closed by a checksum of everything before it."""
        # Absent sections are omitted, so that manifests without them keep their bytes.
        absent = {name for name in ("foreign", "latents") if getattr(self, name) is None}
        body = self.model_dump(exclude=absent)
        return json.dumps({**body, "sha256": digest(body)}, indent=1, ensure_ascii=False).encode()

    @property
    def mds(self) -> MdsColumns | None:
        """Columns of the samples where the shards are MDS of other origin; None for tars.

        Raises:
            RunError: the configuration of the index has none that can be read.
        """
        index = self.config.get("index")
        if self.foreign is None or not isinstance(index, dict) or index.get(MDS) is None:
            return None
        try:
            return MdsColumns.model_validate(index[MDS])
        except ValidationError as error:
            raise RunError(f"{MANIFEST} describes no columns of MDS: {error.errors()[0]['msg']}") from error

    @property
    def index_sha256(self) -> str:
        """Checksum of the index, which determines the whole content of the dataset."""
        return self.table("index").sha256

    def table(self, name: str) -> FileEntry:
        """Return the entry of the table "index", "accounting" or "scores"."""
        return self.tables[name]

    @property
    def tables(self) -> dict[str, FileEntry]:
        """Entries of the tables that the dataset has, by name."""
        names = {table_path(name, self.revision): name for name in (*TABLES, *FURTHER_TABLES)}
        return {names[file.path]: file for file in self.files if file.path in names}

    @property
    def named_as_first(self) -> dict[str, FileEntry]:
        """Entries of tables and plan index, by the names of the first revision; empty where this is the first.

        Their content is written under these names, too, for readers that know no manifest.
        """
        if not self.revision:
            return {}
        tables = {table_path(name, 0): entry for name, entry in self.tables.items()}
        return {**tables, **({} if self.plan_index is None else {plan_path(0): self.plan_index})}

    @property
    def plan_index(self) -> FileEntry | None:
        """Entry of the plan index; None if the dataset has none."""
        path = plan_path(self.revision)
        return next((file for file in self.files if file.path == path), None)


def qualifier(tar: str) -> str:
    """Return the key prefix of a tar: its path without ``.tar``, and a slash."""
    return f"{tar.removesuffix('.tar')}/"


def table_path(name: str, revision: int) -> str:
    """Return the path of a table: ``index.parquet``, and ``index.000001.parquet`` after the first change.

    Changes write tables under new names, so readers see the old dataset or the new one, whole.
    """
    return _revision_name(name, revision, "parquet")


def plan_path(revision: int) -> str:
    """Return the path of the plan index: ``plan.arrow``, and ``plan.000001.arrow`` after the first change."""
    return _revision_name("plan", revision, "arrow")


def history_path(revision: int) -> str:
    """Return the path of the history: ``history.000001.arrow`` after the first change; the first revision has none."""
    return _revision_name("history", revision, "arrow")


def search_folder(index_sha256: str) -> str:
    """Return the place of the search index that is made of an index."""
    return f"{SEARCH}{index_sha256[:16]}/"


def count_states(states: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Return the number of rows by state, for all states; from the states of rows, or from counts of some."""
    counts = Counter(states)
    return {state: counts[state] for state in STATES}


def read_manifest(storage: Storage) -> Manifest:
    """Read and check the dataset's manifest.

    Raises:
        RunError: no finished dataset exists here, or its manifest is damaged or of another format, see
            `parse_manifest`.
    """
    where = storage.uri(MANIFEST)
    info = storage.stat(MANIFEST)
    if info is None:
        if is_absent(storage):
            raise RunError(f"{storage.root} does not exist, so it is no finished dataset; check the path")
        raise RunError(
            f"{storage.root} is no finished dataset: it has no {MANIFEST}; "
            "if its curation was interrupted, run the same command again"
        )
    if info.size > MAX_MANIFEST_BYTES:
        raise RunError(
            f"{where} has {info.size} bytes, more than the {MAX_MANIFEST_BYTES} a manifest may have"
        )
    return parse_manifest(storage.read(MANIFEST, 0, MAX_MANIFEST_BYTES), where)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check the content of a ``manifest.json``.

    Raises:
        RunError: the content is damaged, of another format, or contradictory.
    """
    try:
        body = parse(data)
        checksum = body.pop("sha256")
        version = body.get("format_version")
        if version != FORMAT_VERSION:
            raise RunError(
                f"{where} has format version {version}; this code reads version {FORMAT_VERSION}"
                f" (docs/dataset.md): use Reelweave {_writer(body)}, which wrote it, or make the dataset again"
            )
        manifest = Manifest.model_validate(body)
    except (ValueError, KeyError, AttributeError, TypeError, ValidationError) as error:
        raise RunError(f"{where} is damaged: {_first_fault(error)}") from error
    if checksum != digest(body):
        raise RunError(f"{where} is damaged: its own checksum does not match")
    if wrong := _contradiction(manifest):
        raise RunError(f"{where} is damaged: {wrong}; restore it from a copy, or make the dataset again")
    return manifest


def _writer(body: dict[str, Any]) -> str:
    versions = body.get("versions")
    return str(versions.get("reelweave") if isinstance(versions, dict) else None)[:40]


def _first_fault(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg'][:200]}"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _contradiction(manifest: Manifest) -> str | None:
    """Return the first contradiction or gap of a manifest; None if it is consistent."""
    # Paths: each once, and none that leads out of the dataset.
    listed = [file.path for file in manifest.files]
    paths = [*listed, *(shard.path for shard in manifest.shards)]
    if len(distinct := set(paths)) < len(paths):
        twice = next(path for path, count in Counter(paths).items() if count > 1)
        return f"it lists {twice[:200]!r} twice"
    for path in paths:
        if not _SHARD.fullmatch(path.removesuffix(".idx")):
            try:
                check_path(path).encode()
            except UnicodeEncodeError:
                return f"it lists {ascii(path)[:200]}, which holds half a character"
            except UsageError as error:
                return str(error)[:300]
    # Tables and files that a revision must have.
    required = [table_path(name, manifest.revision) for name in TABLES]
    if manifest.ancestors:
        required.append(history_path(manifest.revision))
    if manifest.latents is not None and manifest.latents.text is not None:
        required.append(manifest.latents.text.empty)
    if missing := next((path for path in required if path not in distinct), None):
        return f"it lists no {missing[:200]}"
    # Names of shards, the order of revisions, and sums.
    ours = manifest.foreign is None
    if other := next(
        (shard.path for shard in manifest.shards if ours and not _SHARD.fullmatch(shard.path)), None
    ):
        return f"it lists a shard {other[:200]!r}, where a shard is called shards/NUMBER-DIGEST.tar"
    revisions = [*(ancestor.revision for ancestor in manifest.ancestors), manifest.revision]
    if revisions != sorted(set(revisions)):
        return f"revision {manifest.revision} follows those before it in another order: {revisions[:-1]}"
    return _other_totals(manifest)


def _other_totals(manifest: Manifest) -> str | None:
    totals, in_shards = manifest.totals, sum(shard.samples for shard in manifest.shards)
    if set(totals.accounting) != set(STATES):
        return f"totals.accounting does not count {', '.join(STATES)}"
    if in_shards != totals.samples or totals.accounting["kept"] != totals.samples:
        return (
            f"it counts {totals.samples} samples, {totals.accounting['kept']} kept ones in the accounting and"
            f" {in_shards} in its shards"
        )
    return None


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 hex digest."""
    return hashlib.sha256(data).hexdigest()


def _revision_name(name: str, revision: int, suffix: str) -> str:
    return f"{name}.{suffix}" if revision == 0 else f"{name}.{revision:06d}.{suffix}"
