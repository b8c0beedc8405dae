"""One pass over one tar: every sample's row of the index, written beside the dataset in one file."""

import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.foreign.fields import FieldChoice, LeftOut, fields_of
from reelweave.curate.foreign.probe import PROBE_VERSION, probe
from reelweave.curate.frames.faults import fault_of
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.publishing.tar_index import TAR_TABLE, TarIndex
from reelweave.loader.dataset.schema import OPTIONAL, Row
from reelweave.loader.dataset.tables.parquet import to_table
from reelweave.loader.dataset.tars.mds_scan import MdsScan, MdsShard
from reelweave.loader.dataset.tars.media import NO_CAPTION, media_suffix, shorten, whole_caption
from reelweave.loader.dataset.tars.tar_samples import read_sample
from reelweave.loader.dataset.tars.tar_scan import TarSample, TarScan
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.storage import Storage
from reelweave.loader.text import count_tokens

NOTES = ".reelweave-index/"
MARKS = {
    "variable_rate": ("frame_rate", "variable"),
    "interlaced": ("scan", "interlaced"),
    "transparent": ("alpha", "transparent"),
    "cropped": ("crop", "container"),
    "rest": ("rest", "unread"),
    "turned": ("turn", "codec"),
}
"""Entry of the column ``attributes`` for each attribute of `Media` that is true or false."""

IMMERSIVE = "view"
"""Name in the column ``attributes`` of the words for a panorama or 3D."""

CUT_CAPTION = ("caption", "cut")
"""Entry of the column ``attributes`` of samples whose caption is longer than an index holds."""

NO_MEDIA = "has no video and no picture"
"""Start of the reason of samples without media."""

ENDS_ITS_READER = "reading it ends the process"
"""Start of the reason of samples that cost several readers their process."""

_ROWS_AT_ONCE = 4096  # a table of rows takes a tenth of their memory as objects

_HEARTBEAT_S = 5.0


def note_path(tar: str) -> str:
    """Return the path of the table of a tar."""
    return f"{NOTES}{tar}.parquet"


@dataclass(frozen=True)
class TarTask:
    """Task of a worker: one tar to read.

    Attributes:
        tars: Storage of the tar.
        path: Path of the tar.
        out: Storage of the tables.
        doubted: Reason by offset of each sample that is not probed.
        at: File for the offset of the sample in work.
        fields: Fields of the samples' metadata to keep.
        mds: What its index says of a shard of MDS; None for a tar.
    """

    tars: Storage
    path: str
    out: Storage
    doubted: Mapping[int, str]
    at: Path
    fields: FieldChoice
    mds: MdsShard | None = None


def read_tar(task: TarTask) -> Iterator[None]:
    """Probe every sample of a tar, once, and write the table of the tar.

    This runs in a child process. Before a sample is probed its offset is written to a file, so that the parent
    knows which sample killed the child.

    Yields:
        A heartbeat now and then.

    Raises:
        MachineError: the tar changed meanwhile, or the disk, the network or this machine keeps it from being read.
        RunError: the tar is gone.
    """
    tars, path = task.tars, task.path
    before = tars.stat(path)
    if before is None:
        raise RunError(f"{tars.uri(path)} is gone; run the same command again")
    # Rows become tables in batches, which take far less memory than objects.
    parts, rows = [TAR_TABLE.empty_table()], []
    quiet_until, left_out = 0.0, LeftOut()
    with tars.open(path) as file, task.at.open("wb") as at:
        scan = TarScan(file) if task.mds is None else MdsScan(file, task.mds)
        for sample in scan:
            os.pwrite(at.fileno(), b"%20d" % sample.offset, 0)
            rows.append(_row(sample, task, left_out))
            if len(rows) == _ROWS_AT_ONCE:
                parts.append(to_table(rows, TAR_TABLE))
                rows = []
            if time.monotonic() > quiet_until:
                quiet_until = time.monotonic() + _HEARTBEAT_S
                yield
        at.truncate(0)
    # A tar that was written to meanwhile would be described by halves.
    after = tars.stat(path)
    if after is None or after.version != before.version or scan.size != before.size:
        raise MachineError(f"{tars.uri(path)} changed while it was read; run the same command again")
    # The table appears whole or not at all.
    table = pa.concat_tables([*parts, to_table(rows, TAR_TABLE)]).combine_chunks()
    table = _of_one_split(table, left_out)
    facts = (path, scan.size, before.version, scan.sha256, tuple(scan.damage), PROBE_VERSION, table)
    tar_index = TarIndex.of(*facts, str(task.fields), left_out.listed, tuple(sorted(left_out.names)))
    task.out.write(note_path(path), tar_index.to_bytes())


def _of_one_split(table: pa.Table, left_out: LeftOut) -> pa.Table:
    """Return the table of a tar, all in train if its samples are of several splits: a shard is of one."""
    usable = table.filter(pc.field("reason") == "")
    if pc.count_distinct(usable["split"]).as_py() < 2:
        return table
    in_val = usable.filter(pc.field("split") == "val")
    for key in in_val["key"].to_pylist():
        left_out.add(
            "val beside train in one tar, which can be of one split: the sample stays in train", "split", key
        )
    train = pa.array(["train"] * len(table), pa.string())
    return table.set_column(table.schema.get_field_index("split"), table.schema.field("split"), train)


def write_local(path: Path, table: pa.Table) -> None:
    """Write a table of a tar to a file of this machine, which is read many times."""
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)


def read_local(path: Path) -> pa.Table:
    """Return a table that `write_local` wrote."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()


def _row(sample: TarSample, task: TarTask, left_out: LeftOut) -> Row:
    path = task.path
    row: Row = {
        **OPTIONAL,
        **_NOTHING,
        "key": sample.key,
        "shard": path,
        "offset": sample.offset,
        "size": sample.size,
        "members": [] if sample.problem else [vars(member) for member in sample.members],
        "source": f"{path}/{sample.key}",
        "reason": sample.problem or task.doubted.get(sample.offset, ""),
    }
    if row["reason"] or sample.region is None:
        return row
    try:
        key, members = _contents(sample, sample.region, task.mds)
        described = {**row, **_describe_sample(sample.region, members)}
    except MachineError:
        raise
    except (SourceError, RunError) as error:
        return {**row, "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - what nobody foresaw of one sample ends no run over others
        return {**row, "reason": fault_of(error)[1]}
    named: dict[str, bytes | memoryview] = {**members}
    if task.mds is not None:
        named["json"] = task.mds.columns.metadata(members)
    fields = fields_of(key, named, task.fields, left_out)
    attributes = fields.attributes | described["attributes"]
    return {**described, **fields.columns, "scores": fields.scores, "attributes": attributes}


def _contents(sample: TarSample, region: bytes, mds: MdsShard | None) -> tuple[str, dict[str, memoryview]]:
    """Return key and contents by suffix of a sample."""
    return read_sample(region) if mds is None else (sample.key, mds.columns.read(region))


def _describe_sample(region: bytes, members: dict[str, memoryview]) -> Row:
    """Return the columns that describe a sample."""
    suffix = media_suffix(members)
    if suffix is None:
        raise SourceError(f"{NO_MEDIA}, only .{', .'.join(members)}")
    media = members[suffix]
    try:
        found = probe(media)
    except SourceError as error:
        raise SourceError(f"its .{suffix} {error}") from error
    # Its caption, and what is marked of its film.
    text, caption_source = whole_caption(members)
    caption = shorten(text)
    digest = hashlib.sha256(media).hexdigest()
    row = dict(vars(found))
    marks = {mark: row.pop(mark) for mark in MARKS}
    view = row.pop("immersive")
    return {
        **row,
        "attributes": dict(
            [entry for mark, entry in MARKS.items() if marks[mark]]
            + [(IMMERSIVE, view)] * bool(view)
            + [CUT_CAPTION] * (caption != text)
        ),
        "end_s": found.duration_s,
        "text_tokens": count_tokens(caption),
        "caption": caption,
        "caption_source": caption_source,
        "source_sha256": digest,
        "sha256": digest,
        "sample_sha256": hashlib.sha256(region).hexdigest(),
        "sample_crc32": zlib.crc32(region),
    }


_NOTHING: Row = {
    "frames": 0,
    "fps": 0.0,
    "height": 0,
    "width": 0,
    "duration_s": 0.0,
    "text_tokens": 0,
    "caption": NO_CAPTION[0],
    "caption_source": NO_CAPTION[1],
    "source_sha256": "",
    "start_s": 0.0,
    "end_s": 0.0,
    "scores": {},
    "sha256": "",
    "sample_sha256": "",
    "sample_crc32": 0,
}
