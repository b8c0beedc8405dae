"""Proof that a dataset is whole: checksums, index against tars, accounting that adds up."""

import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import BinaryIO

import pyarrow as pa

from loader.dataset.manifest import (
    Manifest,
    ShardEntry,
    count_states,
    plan_path,
    read_manifest,
    table_path,
)
from loader.dataset.media import caption_of, media_suffix
from loader.dataset.plan_index import PlanIndex, add_crc32, disagreements, from_arrow
from loader.dataset.reader import shard_storage
from loader.dataset.schema import PLACEMENT, STATES, TABLES, Row
from loader.dataset.shard import idx_bytes
from loader.dataset.tables import from_parquet, to_rows
from loader.dataset.tar_format import padded
from loader.dataset.tar_samples import read_sample
from loader.errors import RunError
from loader.storage import Storage, StorageConfig

MAX_PROBLEMS = 1000
_READ_BYTES = 4 * 2**20
_REPORT = "report/index.html"
_SHOWN = re.compile(r'alt="middle frame of ([^"]{1,200})"')


@dataclass
class Verification:
    """What a verification saw.

    Attributes:
        samples: checked.
        bytes: read from shards.
        problems: one sentence each, naming the file and, where it can be known, the key; empty when all is well.
    """

    samples: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


def verify(
    storage: Storage, progress: Callable[[str], None] = lambda _: None, config: StorageConfig | None = None
) -> Verification:
    """Reads every byte of the dataset and compares it with what its manifest and index promise.

    Args:
        storage: of the dataset.
        progress: called with the path of each file before it is read.
        config: for the tars, where they lie elsewhere.

    Raises:
        RunError: there is no readable manifest.
    """
    manifest = read_manifest(storage)
    result = Verification()
    names = {table_path(name, manifest.revision): name for name in TABLES}
    shards = [shard.path for shard in manifest.shards]
    tables: dict[str, pa.Table] = {}
    plan_index: PlanIndex | None = None
    for entry in manifest.files:
        progress(entry.path)
        try:
            data = storage.read(entry.path)
        except FileNotFoundError:
            result.problems.append(f"{entry.path} is missing")
            continue
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            result.problems.append(f"{entry.path} is damaged: its checksum is not the manifest's")
        elif name := names.get(entry.path):
            table = from_parquet(data)
            if not table.schema.equals(TABLES[name]):
                result.problems.append(
                    f"{entry.path} has other columns than this format: {table.schema.names}"
                )
            else:
                tables[name] = table
        elif entry.path == plan_path(manifest.revision):
            try:
                plan_index = from_arrow(data, entry.path, manifest.totals.samples)
            except RunError as error:
                result.problems.append(str(error))
    if "index" in tables:
        index = to_rows(tables["index"])
        result.samples = len(index)
        if plan_index is not None:
            result.problems += disagreements(
                plan_index, plan_path(manifest.revision), tables["index"], shards
            )
            add_crc32(index, plan_index)
        result.problems += _check_index(manifest, index)
        _check_shards(shard_storage(storage, manifest, config), manifest, index, progress, result)
        if "accounting" in tables:
            result.problems += _check_accounting(manifest, index, to_rows(tables["accounting"]))
        if manifest.removals:
            result.problems += _check_taken_down(storage, manifest)
    return result


def _check_taken_down(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """What an interrupted take-down left behind: files named after a sample that went, and a report that shows it."""
    gone = {removal.key for removal in manifest.removals if removal.key}
    for item in storage.list(".ledger/"):
        if item.path.rsplit("/", 1)[-1].split("-", 1)[0].split(".", 1)[0] in gone:
            yield f"{item.path} is left of what was taken down; run `reelweave remove` for it once more"
    if storage.stat(_REPORT) is not None:
        page = storage.read(_REPORT).decode(errors="replace")
        sources = [
            html.escape(removal.source, quote=False) for removal in manifest.removals if removal.source
        ]
        if gone & set(_SHOWN.findall(page)) or any(f'<p class="soft">{one}, ' in page for one in sources):
            yield f"{_REPORT} shows samples that were taken down; run `reelweave report` again"


def _check_index(manifest: Manifest, index: list[Row]) -> Iterator[str]:
    listed = {shard.path: shard.samples for shard in manifest.shards}
    found: dict[str, int] = {}
    for row in index:
        found[row["shard"]] = found.get(row["shard"], 0) + 1
        if "." in row["key"].rpartition("/")[2]:
            yield f"key {row['key']} holds a dot: other WebDataset readers would cut it"
    for one, other in pairwise(sorted(row["key"] for row in index)):
        if one == other:
            yield f"key {one} occurs twice in index.parquet"
    for path in sorted(listed.keys() | found.keys()):
        if listed.get(path, 0) != found.get(path, 0):
            yield f"{path}: the manifest lists {listed.get(path, 0)} samples, index.parquet {found.get(path, 0)}"
    if manifest.totals.samples != len(index):
        yield f"manifest.json counts {manifest.totals.samples} samples, index.parquet has {len(index)}"


def _check_shards(
    storage: Storage,
    manifest: Manifest,
    index: list[Row],
    progress: Callable[[str], None],
    result: Verification,
) -> None:
    by_shard: dict[str, list[Row]] = {shard.path: [] for shard in manifest.shards}
    for row in index:
        by_shard.setdefault(row["shard"], []).append(row)
    for item in storage.list("shards/") if manifest.foreign is None else ():
        if item.path.removesuffix(".idx") not in by_shard:
            result.problems.append(f"{item.path} lies among the shards, but manifest.json does not list it")
    idx_sha256 = {file.path: file.sha256 for file in manifest.files}
    for shard in manifest.shards:
        progress(shard.path)
        rows = sorted(by_shard[shard.path], key=lambda row: row["offset"])
        end = rows[-1]["offset"] + rows[-1]["size"] if rows else 0
        expected_idx = hashlib.sha256(idx_bytes([row["offset"] for row in rows], end)).hexdigest()
        if manifest.foreign is None and idx_sha256.get(f"{shard.path}.idx") != expected_idx:
            result.problems.append(f"{shard.path}.idx does not hold the offsets of index.parquet")
        info = storage.stat(shard.path)
        if info is None:
            result.problems.append(f"{shard.path} is missing")
            continue
        if info.size != shard.size:
            result.problems.append(f"{shard.path} has {info.size} bytes, the manifest says {shard.size}")
        result.bytes += info.size
        with storage.open(shard.path) as file:
            result.problems += _check_shard(file, shard, rows, foreign=manifest.foreign is not None)
        del result.problems[MAX_PROBLEMS:]


def _check_shard(file: BinaryIO, shard: ShardEntry, rows: list[Row], foreign: bool) -> Iterator[str]:
    path = shard.path
    whole = hashlib.sha256()
    position = 0
    named = False
    for row in rows:
        # Between samples of foreign tars may lie others, which the accounting names.
        between = row["offset"] - position
        if between < 0 or (between and not foreign):
            yield f"{path}: sample {row['key']} should start at byte {position}, index.parquet says {row['offset']}"
            return
        _hash(file, between, whole)
        region = _read_exactly(file, row["size"])
        whole.update(region)
        position += between + len(region)
        if hashlib.sha256(region).hexdigest() != row["sample_sha256"]:
            named = True
            yield f"{path}: sample {row['key']} is damaged ({_what_differs(region, row)})"
        else:
            yield from _check_members(path, region, row, foreign, shard.key_prefix)
            if "sample_crc32" in row and zlib.crc32(region) != row["sample_crc32"]:
                yield f"{path}: the crc32 of sample {row['key']} in the plan index is not that of its bytes"
    _hash(file, None, whole)
    if whole.hexdigest() != shard.sha256 and not named:
        last = rows[-1]["key"] if rows else "the start"
        where = "outside of its samples" if foreign else f"in the end-of-archive blocks after {last}"
        yield f"{path} is damaged {where}: its checksum is not the manifest's"


def _check_members(path: str, region: bytes, row: Row, foreign: bool, prefix: str) -> Iterator[str]:
    """An undamaged sample can still be one that was written wrong."""
    key = row["key"]
    try:
        found, contents = read_sample(region)
    except RunError as error:
        yield f"{path}: {error}"
        return
    promised = [member["suffix"] for member in row["members"]]
    if f"{prefix}{found}" != key or list(contents) != promised:
        where = row["offset"]
        yield f"{path}: index.parquet promises {key} with members {promised} at byte {where}, the tar has another"
        return
    media = media_suffix(promised)
    for member in row["members"]:
        suffix = member["suffix"]
        name = f"{key}.{suffix}"
        content = contents[suffix]
        start = member["offset"] - row["offset"]
        if region[start : start + member["size"]] != content:
            yield f"{path}: the content of {name} does not lie where index.parquet says"
        if suffix == media and hashlib.sha256(content).hexdigest() != row["sha256"]:
            yield f"{path}: {name} is not the clip whose sha256 index.parquet holds"
        if suffix == "txt" and not foreign and content != row["caption"].encode():
            yield f"{path}: {name} is not the caption of index.parquet"
        digest = row["embeddings"].get(suffix)
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            yield f"{path}: {name} is not the embedding whose sha256 index.parquet holds"
        if suffix == "json" and not foreign and json.loads(bytes(content)) != _readable(row):
            yield f"{path}: {name} differs from its row in index.parquet"
    if foreign and caption_of(contents)[0] != row["caption"]:
        yield f"{path}: sample {key} has another caption than index.parquet"
    end = row["members"][-1]["offset"] + padded(row["members"][-1]["size"]) - row["offset"]
    if end != row["size"]:
        yield f"{path}: sample {key} has {row['size']} bytes, its members fill {end}"


def _readable(row: Row) -> Row:
    return {column: value for column, value in row.items() if column not in PLACEMENT}


def _what_differs(region: bytes, row: Row) -> str:
    if len(region) < row["size"]:
        return f"the shard ends after {len(region)} of its {row['size']} bytes"
    media = media_suffix(member["suffix"] for member in row["members"])
    for member in row["members"]:
        start = member["offset"] - row["offset"]
        content = region[start : start + member["size"]]
        if member["suffix"] == media and hashlib.sha256(content).hexdigest() != row["sha256"]:
            return f"in {row['key']}.{media}"
        if member["suffix"] == "txt" and _other_text(content, row):
            return f"in {row['key']}.txt"
        digest = row["embeddings"].get(member["suffix"])
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            return f"in {row['key']}.{member['suffix']}"
    return "in its metadata or a tar header"


def _other_text(content: bytes, row: Row) -> bool:
    if not row["caption_source"].startswith("member:"):
        return bool(content != row["caption"].encode())
    return bool(row["caption_source"] == "member:txt" and caption_of({"txt": content})[0] != row["caption"])


def _hash(file: BinaryIO, size: int | None, digest: "hashlib._Hash") -> None:
    """Passes over bytes, to the end when ``size`` is None."""
    while size is None or size > 0:
        block = file.read(_READ_BYTES if size is None else min(size, _READ_BYTES))
        if not block:
            return
        digest.update(block)
        size = None if size is None else size - len(block)


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_accounting(manifest: Manifest, index: list[Row], accounting: list[Row]) -> Iterator[str]:
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
        if row["state"] not in STATES:
            yield f"{where} has state {row['state']!r}; possible are {', '.join(STATES)}"
        if row["state"] == "duplicate" and row["duplicate_of"] not in keys:
            yield f"{where} is a duplicate of {row['duplicate_of']}, which index.parquet does not have"
        if row["state"] != "kept" and not row["reason"]:
            yield f"{where} is {row['state']} without a reason"
    yield from _check_spans(accounting)
    counts = count_states([row["state"] for row in accounting])
    if counts != manifest.totals.accounting:
        yield f"accounting.parquet counts {counts}, manifest.json {manifest.totals.accounting}"
    if manifest.totals.sources != len({row["source"] for row in accounting}):
        yield "accounting.parquet and manifest.json disagree on the number of sources"


def _check_spans(accounting: list[Row]) -> Iterator[str]:
    """Spans of one source lie side by side: no second of it is counted twice or lost between two rows."""
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
