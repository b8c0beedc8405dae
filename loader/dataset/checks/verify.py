"""Verification of a dataset: checksums, consistent tables, index against tars, and complete accounting."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.checks.verify_shards import MAX_PROBLEMS, check_shards, leads_out
from loader.dataset.history import SHAPE, RevisionHistory
from loader.dataset.listed import read_listed
from loader.dataset.manifest import Manifest, history_path, plan_path, read_manifest, table_path
from loader.dataset.plan_index import PlanIndex, add_crc32, disagreements, from_arrow, impossible
from loader.dataset.reader import shard_storage
from loader.dataset.schema import TABLES, Row
from loader.dataset.tables.checks import problems, row_count
from loader.dataset.tables.parquet import read_table, to_rows
from loader.dataset.tars.members import media_members
from loader.errors import RunError
from loader.storage import Storage, StorageConfig

_REPORT = "report/"
_MAX_REPORT_BYTES = 256 << 20


@dataclass
class Verification:
    """Result of a verification.

    Attributes:
        samples: number of samples checked.
        bytes: number of bytes read from shards.
        problems: one sentence each, with the file and, if known, the key; empty for an intact dataset.
    """

    samples: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)

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
        RunError: the manifest is missing or unreadable.
    """
    manifest = read_manifest(storage)
    result = Verification()
    found = _read_files(storage, manifest, progress, result)
    index, table = None, found.tables.get("index")
    if table is not None:
        result.problems += _check_totals(manifest, table)
        result.problems += _check_plans(manifest, table, found)
        index = to_rows(table)
        result.samples = len(index)
        if found.plan_index is not None:
            add_crc32(index, found.plan_index)
        result.problems += _check_index(manifest, index)
        if "accounting" in found.tables:
            result.problems += _check_accounting(index, to_rows(found.tables["accounting"]))
        if "scores" in found.tables:
            result.problems += _check_scores(table, found.tables["scores"])
    checked = check_shards(shard_storage(storage, manifest, config), manifest, index, progress)
    result.bytes = checked.bytes
    result.problems += checked.problems
    if manifest.removals:
        result.problems += _check_taken_down(storage, manifest)
    del result.problems[MAX_PROBLEMS:]
    return result


@dataclass
class _Files:
    """Usable content of the listed files.

    Attributes:
        tables: tables by name.
        plan_index: plan index; None if missing or damaged.
        history: history; None if missing or damaged.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    plan_index: PlanIndex | None = None
    history: RevisionHistory | None = None


def _read_files(
    storage: Storage, manifest: Manifest, progress: Callable[[str], None], result: Verification
) -> _Files:
    names = {table_path(name, manifest.revision): name for name in TABLES}
    found = _Files()
    for entry in manifest.files:
        path = entry.path
        progress(path)
        if manifest.foreign is None and leads_out(storage, path):
            result.problems.append(f"{path} is a link that leads out of the dataset; copy the file there")
        try:
            data = read_listed(storage, entry, path)
            if name := names.get(path):
                table = read_table(data, entry.size, path, TABLES[name], row_count(name, manifest))
                wrong = list(problems(name, table, path, manifest))
                result.problems += wrong
                if not wrong:
                    found.tables[name] = table
            elif path == plan_path(manifest.revision):
                found.plan_index = from_arrow(data, path, manifest.totals.samples)
            elif path == history_path(manifest.revision):
                found.history = RevisionHistory.from_arrow(data, path)
        except RunError as error:
            result.problems.append(str(error))
    return found


def _check_totals(manifest: Manifest, index: pa.Table) -> Iterator[str]:
    totals = manifest.totals
    seconds = pc.sum(index.column("duration_s")).as_py() or 0.0
    if not math.isclose(seconds, totals.duration_s, rel_tol=1e-6, abs_tol=1e-6):
        yield f"manifest.json counts {totals.duration_s} s, index.parquet {seconds}"
    if (size := int(media_members(index).size.sum())) != totals.clip_bytes:
        yield f"manifest.json counts {totals.clip_bytes} bytes of clips, index.parquet {size}"


def _check_plans(manifest: Manifest, index: pa.Table, found: _Files) -> Iterator[str]:
    """Compare plan index and history with the index."""
    shards = [shard.path for shard in manifest.shards]
    path, plan_index = plan_path(manifest.revision), found.plan_index
    if plan_index is None:
        return
    wrong = impossible(plan_index, path, [shard.size for shard in manifest.shards])
    yield from [wrong] if wrong else disagreements(plan_index, path, index, shards)
    if found.history is not None:
        held = found.history.plan_index(manifest.revision)
        pairs = ((getattr(held, name), getattr(plan_index, name)) for name in SHAPE)
        if not all(np.array_equal(one, other) for one, other in pairs):
            yield f"{history_path(manifest.revision)} remembers other samples of this revision than {path} holds"


def _check_taken_down(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield leftovers of an interrupted take-down: files named after removed samples, and a report that shows them."""
    gone = {removal.key for removal in manifest.removals if removal.key}
    for item in storage.list(".ledger/"):
        if item.path.rsplit("/", 1)[-1].split("-", 1)[0].split(".", 1)[0] in gone:
            yield f"{item.path} is left of what was taken down; run `reelweave remove` for it once more"
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
            shows = any(one in data for one in shown)
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
    except RunError:
        return True
    return any(
        pc.any(pc.is_in(table.column(name), pa.array(gone, pa.string()))).as_py()
        for name, gone in (("key", sorted(keys)), ("source", sorted(sources)))
    )


def _check_index(manifest: Manifest, index: list[Row]) -> Iterator[str]:
    listed = {shard.path: shard.samples for shard in manifest.shards}
    found: dict[str, int] = {}
    for row in index:
        found[row["shard"]] = found.get(row["shard"], 0) + 1
        if "." in row["key"].rpartition("/")[2]:
            yield f"key {row['key']} holds a dot: other WebDataset readers would cut it"
    for path in sorted(listed.keys() | found.keys()):
        if listed.get(path, 0) != found.get(path, 0):
            yield f"{path}: the manifest lists {listed.get(path, 0)} samples, index.parquet {found.get(path, 0)}"
    splits: dict[str, set[str]] = {}
    for row in index:
        splits.setdefault(row["shard"], set()).add(row["split"])
    for path, names in splits.items():
        if len(names) > 1:
            yield f"{path} holds samples of {' and '.join(sorted(names))}; a shard is of one split"


def _check_accounting(index: list[Row], accounting: list[Row]) -> Iterator[str]:
    keys = {row["key"] for row in index}
    kept = [row["key"] for row in accounting if row["state"] == "kept"]
    for key in sorted(keys - set(kept)):
        yield f"accounting.parquet has no kept row for sample {key}"
    for key in sorted({str(key) for key in kept} - keys):
        yield f"accounting.parquet calls {key} kept, but index.parquet does not have it"
    if len(kept) != len(set(kept)):
        yield "accounting.parquet has two kept rows for one key"
    for row in accounting:
        where = f"accounting.parquet: {row['source']} from {row['start_s']} s"
        if row["state"] == "duplicate" and row["duplicate_of"] not in keys:
            yield f"{where} is a duplicate of {row['duplicate_of']}, which index.parquet does not have"
        if row["state"] != "kept" and not row["reason"]:
            yield f"{where} is {row['state']} without a reason"
    yield from _check_spans(accounting)


def _check_scores(index: pa.Table, scores: pa.Table) -> Iterator[str]:
    kept = scores.filter(pc.equal(scores.column("state"), "kept")).column("key")
    strange = pc.invert(pc.is_in(kept, value_set=index.column("key").combine_chunks()))
    for key in kept.filter(strange).to_pylist():
        yield f"scores.parquet calls {key} kept, but index.parquet does not have it"


def _check_spans(accounting: list[Row]) -> Iterator[str]:
    """Check that spans of a source are adjacent, so that no second is counted twice or missing."""
    by_source: dict[str, list[Row]] = {}
    for row in accounting:
        by_source.setdefault(row["source"], []).append(row)
    for source, rows in by_source.items():
        if rows[0]["start_s"] is None and len(rows) > 1:
            yield f"accounting.parquet: {source} has a row without a span beside others"
        spans = sorted((row["start_s"], row["end_s"]) for row in rows if row["start_s"] is not None)
        for (_, end), (start, _) in pairwise(spans):
            if abs(end - start) > 1e-6:
                yield f"accounting.parquet: {source} has a span ending at {end} s and the next starting at {start} s"
