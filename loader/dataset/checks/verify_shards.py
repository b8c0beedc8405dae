"""Verification of a dataset's shards: every byte, against manifest and index."""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from reelweave.loader.base.strict_json import parse
from reelweave.loader.dataset.checks.cross_tables import MAX_PROBLEMS
from reelweave.loader.dataset.manifest import Manifest, ShardEntry
from reelweave.loader.dataset.schema import PLACEMENT, Row
from reelweave.loader.dataset.shard import idx_bytes
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.dataset.tables.rows_by_shard import RowsByShard
from reelweave.loader.dataset.tars.mds import MdsColumns, mds_key
from reelweave.loader.dataset.tars.media import caption_of, media_suffix
from reelweave.loader.dataset.tars.tar_format import padded_size
from reelweave.loader.dataset.tars.tar_samples import read_sample
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage
from reelweave.loader.storage.local import LocalStorage

_READ_BYTES = 4 * 2**20


@dataclass
class CheckedShards:
    """Result of reading the shards.

    Attributes:
        bytes: number of bytes read.
        problems: problems in words, at most `MAX_PROBLEMS`.
    """

    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def check_shards(
    storage: Storage, manifest: Manifest, rows: RowsByShard | None, progress: Callable[[str], None]
) -> CheckedShards:
    """Read every byte of the shards and compare it with manifest and index.

    Args:
        storage: storage of the shards.
        manifest: manifest of the dataset.
        rows: all rows, checked (`reelweave.loader.dataset.tables.checks`); None if damaged, which leaves only
            the checksums of whole shards to compare.
        progress: callback with the path of each shard before it is read.
    """
    result = CheckedShards()
    listed = {shard.path for shard in manifest.shards}
    # Files that the manifest does not know; a folder of other people's tars may hold any.
    for item in storage.list("shards/") if manifest.foreign is None else ():
        if item.path.removesuffix(".idx") not in listed:
            result.problems.append(f"{item.path} lies among the shards, but manifest.json does not list it")
    idx_sha256 = {file.path: file.sha256 for file in manifest.files}
    for index, shard in enumerate(manifest.shards):
        # The offsets beside each tar, as the index gives them.
        shard_rows = [] if rows is None else to_rows(rows.table(index))
        progress(shard.path)
        end = shard_rows[-1]["offset"] + shard_rows[-1]["size"] if shard_rows else 0
        expected_idx = hashlib.sha256(idx_bytes([row["offset"] for row in shard_rows], end)).hexdigest()
        if (
            rows is not None
            and manifest.foreign is None
            and idx_sha256.get(f"{shard.path}.idx") != expected_idx
        ):
            result.problems.append(f"{shard.path}.idx does not hold the offsets of index.parquet")
        # The tar itself: that it is there, its own file, of its size, and every sample as its row says.
        info = storage.stat(shard.path)
        if info is None:
            result.problems.append(f"{shard.path} is missing, or is no file")
            continue
        if manifest.foreign is None and leads_out(storage, shard.path):
            result.problems.append(
                f"{shard.path} is a link that leads out of the dataset; copy the file there"
            )
        if info.size != shard.size:
            result.problems.append(f"{shard.path} has {info.size} bytes, the manifest says {shard.size}")
        result.bytes += min(info.size, shard.size)
        with storage.open(shard.path) as file:
            result.problems += _check_shard(file, shard, shard_rows, manifest)
        del result.problems[MAX_PROBLEMS:]
    return result


def leads_out(storage: Storage, path: str) -> bool:
    """Return whether a file of a local folder is a link to another place, which a copy of the folder would lack."""
    if not isinstance(storage, LocalStorage):
        return False
    try:
        return not (storage.folder / path).resolve().is_relative_to(storage.folder.resolve())
    except (OSError, RuntimeError):  # circular links
        return True


def _check_shard(file: BinaryIO, shard: ShardEntry, rows: list[Row], manifest: Manifest) -> Iterator[str]:
    path, foreign, mds = shard.path, manifest.foreign is not None, manifest.mds
    digest = hashlib.sha256()
    position = 0
    named = False
    for row in rows:
        # Tars of other origin may have further samples in between, which the accounting lists.
        between = row["offset"] - position
        if between < 0 or (between and not foreign):
            yield f"{path}: sample {row['key']} should start at byte {position}, index.parquet says {row['offset']}"
            return
        _hash(file, between, digest)
        region = _read_exactly(file, row["size"])
        digest.update(region)
        position += between + len(region)
        if hashlib.sha256(region).hexdigest() != row["sample_sha256"]:
            named = True
            yield f"{path}: sample {row['key']} is damaged ({_what_differs(region, row)})"
        else:
            yield from _check_members(path, region, row, foreign, shard.key_prefix, mds)
            if "sample_crc32" in row and zlib.crc32(region) != row["sample_crc32"]:
                yield f"{path}: the crc32 of sample {row['key']} in the plan index is not that of its bytes"
    _hash(file, shard.size - position, digest)
    if digest.hexdigest() != shard.sha256 and not named:
        last = rows[-1]["key"] if rows else "the start"
        where = (
            "outside of its samples" if foreign or not rows else f"in the end-of-archive blocks after {last}"
        )
        yield f"{path} is damaged {where}: its checksum is not the manifest's"


def _check_members(
    path: str, region: bytes, row: Row, foreign: bool, prefix: str, mds: MdsColumns | None
) -> Iterator[str]:
    """Compare the members of an undamaged sample with its row, since it may have been written wrong."""
    key = row["key"]
    try:
        sample, contents = (
            read_sample(region) if mds is None else (mds_key(path, row["offset"]), mds.read(region))
        )
    except RunError as error:
        yield f"{path}: {error}"
        return
    # Names and order first; without them no content can be compared.
    promised = [member["suffix"] for member in row["members"]]
    if f"{prefix}{sample}" != key or list(contents) != promised:
        where = row["offset"]
        yield f"{path}: index.parquet promises {key} with members {promised} at byte {where}, the tar has another"
        return
    media = media_suffix(promised)
    # Each member lies where the row says, with the content that it names.
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
        if suffix == "json" and not foreign and not _same_row(content, row):
            yield f"{path}: {name} differs from its row in index.parquet"
    if foreign and caption_of(contents)[0] != row["caption"]:
        yield f"{path}: sample {key} has another caption than index.parquet"
    # The sample ends with its last member.
    last = row["members"][-1]
    size = padded_size(last["size"]) if mds is None else last["size"]
    end = last["offset"] + size - row["offset"]
    if end != row["size"]:
        yield f"{path}: sample {key} has {row['size']} bytes, its members fill {end}"


def _same_row(content: memoryview, row: Row) -> bool:
    try:
        return bool(parse(bytes(content)) == _readable(row))
    except ValueError:
        return False


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


def _hash(file: BinaryIO, size: int, digest: "hashlib._Hash") -> None:
    """Hash and skip bytes of a file."""
    for block in _blocks(file, size):
        digest.update(block)


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    return b"".join(_blocks(file, size))


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next bytes of a file in blocks, for any stated size; fewer if the file ends."""
    while size > 0 and (block := file.read(min(size, _READ_BYTES))):
        yield block
        size -= len(block)
