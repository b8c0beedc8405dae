"""Verification of a dataset: checksums, consistent tables, index against tars, and complete accounting."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.base.argument_types import check_protocol
from reelweave.loader.dataset.checks.cross_tables import MAX_PROBLEMS, CrossChecks
from reelweave.loader.dataset.checks.verify_shards import check_shards, leads_out
from reelweave.loader.dataset.history import SHAPE, RevisionHistory
from reelweave.loader.dataset.listed import check_listed
from reelweave.loader.dataset.manifest import (
    SEARCH,
    FileEntry,
    Manifest,
    history_path,
    plan_path,
    read_manifest,
    search_folder,
    table_path,
)
from reelweave.loader.dataset.plan_index import Comparison, PlanIndex, map_plan_index, refuse_impossible
from reelweave.loader.dataset.reader import shard_storage
from reelweave.loader.dataset.schema import FURTHER_TABLES, TABLES
from reelweave.loader.dataset.tables.checks import TableChecks, row_count
from reelweave.loader.dataset.tables.parquet import read_batches, read_table
from reelweave.loader.dataset.tables.rows_by_shard import RowsByShard
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.storage import Storage, StorageConfig

_REPORT = "report/"
_NOT_DECODED = (
    "the bytes are those that were indexed; pictures are not decoded here. A stream finds most damage that was in the"
    " tars before, but hardly any of HEVC and VP8, whose decoders do not tell it"
)
_MAX_REPORT_BYTES = 256 << 20


@dataclass
class Verification:
    """Result of a verification.

    Attributes:
        samples: number of samples checked.
        bytes: number of bytes read from shards.
        problems: one sentence each, with the file and, if known, the key; empty for an intact dataset.
        remark: what the checks do not cover, in words; "" where curation decoded every clip.
    """

    samples: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    remark: str = ""

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems


def verify(
    storage: Storage, progress: Callable[[str], None] = lambda _: None, config: StorageConfig | None = None
) -> Verification:
    """Read every byte of the dataset and compare it with manifest and index.

    Args:
        storage: storage of the dataset.
        progress: callback with the path of each file before it is read.
        config: configuration for tars in another storage.

    Raises:
        MachineError: the disk, the network or this machine keeps a file from being read.
        RunError: the manifest is missing or unreadable.
    """
    check_protocol(storage, "uri", "storage", 'give open_storage("URI") of the dataset')
    manifest = read_manifest(storage)
    result = Verification(remark="" if manifest.foreign is None else _NOT_DECODED)
    with RowsByShard(manifest.shards) as rows:
        indexed = _read_files(storage, manifest, progress, result, rows)
        checked = check_shards(
            shard_storage(storage, manifest, config), manifest, rows if indexed else None, progress
        )
    result.bytes = checked.bytes
    result.problems += checked.problems
    result.problems += _check_names(storage, manifest)
    if manifest.removals:
        result.problems += _check_taken_down(storage, manifest)
    del result.problems[MAX_PROBLEMS:]
    return result


def _read_files(
    storage: Storage,
    manifest: Manifest,
    progress: Callable[[str], None],
    result: Verification,
    rows: RowsByShard,
) -> bool:
    """Check all files but shards, and collect the rows of the shards; return whether the index is sound."""
    names = {table_path(name, manifest.revision): name for name in TABLES}
    further = {table_path(name, manifest.revision): name for name in FURTHER_TABLES}
    plans = (plan_path(manifest.revision), history_path(manifest.revision))
    sound: dict[str, FileEntry] = {}
    sound_further: dict[str, FileEntry] = {}
    # Every file by itself: its place, size and checksum.
    for entry in manifest.files:
        path = entry.path
        progress(path)
        if manifest.foreign is None and leads_out(storage, path):
            result.problems.append(f"{path} is a link that leads out of the dataset; copy the file there")
        try:
            check_listed(storage, entry, path)
            if path in names or path in plans:
                sound[path] = entry
            if path in further:
                sound_further[further[path]] = entry
        except MachineError:
            raise
        except RunError as error:
            result.problems.append(str(error))
    # Then tables, and what they say of each other.
    with CrossChecks(manifest) as across:
        intact: dict[str, bool] = {}
        plan_index = _plan_index(storage, manifest, sound.get(plans[0]), result)
        for path, name in names.items():
            if path in sound:
                context = (plan_index, rows) if name == "index" else (None, None)
                intact[name] = _check_table(storage, manifest, sound[path], name, across, result, *context)
        for name, entry in sound_further.items():
            _read_further(storage, entry, name, across, result)
        result.problems += across.problems({name for name, good in intact.items() if good})
    # A history is compared with a sound index alone.
    if intact.get("index"):
        result.samples = manifest.totals.samples
    if plans[1] in sound and plan_index is not None:
        result.problems += _check_history(storage, manifest, sound[plans[1]], plan_index)
    return intact.get("index", False)


def _read_further(
    storage: Storage, entry: FileEntry, name: str, across: CrossChecks, result: Verification
) -> None:
    """Read a table that a dataset may lack; it must have the columns of the format, and captions those of samples."""
    try:
        with storage.open(entry.path) as file:
            for batch in read_batches(file, entry.size, entry.path, FURTHER_TABLES[name], None):
                if name == "captions":
                    across.add(name, pa.Table.from_batches([batch]))
    except MachineError:
        raise
    except RunError as error:
        result.problems.append(str(error))


def _check_table(
    storage: Storage,
    manifest: Manifest,
    entry: FileEntry,
    name: str,
    across: CrossChecks,
    result: Verification,
    plan_index: PlanIndex | None,
    rows: RowsByShard | None,
) -> bool:
    """Check a table part by part, add its rows to what is compared later, and return whether each row is sound."""
    checks, compared = TableChecks(name, entry.path, manifest), None
    if plan_index is not None:
        shards = [shard.path for shard in manifest.shards]
        compared = Comparison(plan_index, plan_path(manifest.revision), shards)
    # One batch at a time is in memory; once one is wrong, nothing is compared with it.
    first = 0
    try:
        with storage.open(entry.path) as file:
            batches = read_batches(file, entry.size, entry.path, TABLES[name], row_count(name, manifest))
            for batch in batches:
                table = pa.Table.from_batches([batch])
                checks.add(table)
                if not checks.wrong:
                    across.add(name, table)
                    if compared is not None:
                        compared.add(table)
                    if rows is not None:
                        rows.add(table, None if plan_index is None else plan_index.crc32, first)
                first += len(table)
    except MachineError:
        raise
    except RunError as error:
        result.problems.append(str(error))
        return False
    # A sound table is compared with the sources, and with the plan index.
    result.problems += checks.problems(across.sources if name == "accounting" else None)
    if checks.wrong:
        return False
    if compared is not None:
        result.problems += compared.problems()
    return True


def _check_names(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield files under the names of the first revision that are of another one than the manifest."""
    for path, entry in manifest.named_as_first.items():
        if storage.stat(path) is None:
            continue  # earlier versions of this code wrote none of them
        try:
            check_listed(storage, entry.model_copy(update={"path": path}), path)
        except MachineError:
            raise
        except RunError:
            yield f"{path} is of another revision than manifest.json; run the command that changed the dataset again"


def _check_taken_down(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield leftovers of an interrupted take-down: files named after removed samples, and a report that shows them."""
    gone = {removal.key for removal in manifest.removals if removal.key}
    for item in storage.list(".ledger/"):
        if item.path.rsplit("/", 1)[-1].split("-", 1)[0].split(".", 1)[0] in gone:
            yield f"{item.path} is left of what was taken down; run `reelweave remove` for it once more"
    for item in storage.list(SEARCH):
        if not item.path.startswith(search_folder(manifest.index_sha256)):
            yield f"{item.path} is of another revision than the last take-down's; make it again, or delete it"
            break
    sources = {removal.source for removal in manifest.removals if removal.source}
    if gone or sources:
        yield from _check_report(storage, gone, sources)


def _check_report(storage: Storage, keys: set[str], sources: set[str]) -> Iterator[str]:
    """Yield a report whose page links to removed samples, or whose data or table holds a removed key or source."""
    # As values: the text of a page goes on naming the source that was taken down, as the accounting does.
    shown = [f'"{key}"'.encode() for key in keys] + [f'#{key}"'.encode() for key in keys]
    shown += [json.dumps(source, ensure_ascii=False).encode() for source in sources]
    for item in storage.list(_REPORT):
        if item.path.endswith((".html", ".js")):
            data = storage.read(item.path, 0, _MAX_REPORT_BYTES)
            shows = any(marker in data for marker in shown)
        elif item.path.endswith(".parquet"):
            shows = _names_any(storage, item.path, keys, sources)
        else:
            continue
        if shows:
            yield f"{item.path} shows samples that were taken down; run `reelweave report` again"
            return


def _names_any(storage: Storage, path: str, keys: set[str], sources: set[str]) -> bool:
    """Return whether a table of the report has a row of a removed key or source; one that cannot be read may."""
    data = storage.read(path, 0, _MAX_REPORT_BYTES)
    schema = pa.schema([("key", pa.string()), ("source", pa.string())])
    try:
        table = read_table(data, len(data), storage.uri(path), schema, None, schema.names)
    except MachineError:
        raise
    except RunError:
        return True
    return any(
        pc.any(pc.is_in(table.column(name), pa.array(gone, pa.string()))).as_py()
        for name, gone in (("key", sorted(keys)), ("source", sorted(sources)))
    )


def _plan_index(
    storage: Storage, manifest: Manifest, entry: FileEntry | None, result: Verification
) -> PlanIndex | None:
    """Return the plan index if it is there and each of its rows is possible."""
    if entry is None:
        return None
    try:
        plan_index = map_plan_index(storage, entry, entry.path, manifest.totals.samples)
        refuse_impossible(plan_index, entry.path, [shard.size for shard in manifest.shards])
    except MachineError:
        raise
    except RunError as error:
        result.problems.append(str(error))
        return None
    return plan_index


def _check_history(
    storage: Storage, manifest: Manifest, entry: FileEntry, plan_index: PlanIndex
) -> Iterator[str]:
    """Compare the history's rows of this revision with the plan index."""
    try:
        held = RevisionHistory.from_arrow(storage.read(entry.path, 0, entry.size), entry.path).plan_index(
            manifest.revision
        )
    except MachineError:
        raise
    except RunError as error:
        yield str(error)
        return
    pairs = ((getattr(held, name), getattr(plan_index, name)) for name in SHAPE)
    if not all(np.array_equal(first, other) for first, other in pairs):
        other = plan_path(manifest.revision)
        yield f"{entry.path} remembers other samples of this revision than {other} holds"
