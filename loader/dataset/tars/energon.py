"""Metadata for Megatron-Energon, ``.nv-meta/`` (layout of version 7), which opens the folder unchanged."""

import json
import re
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ENERGON_VERSION = "7.4.1"
ENERGON_COLUMNS = ("key", "offset", "size", "members")
"""Columns of the index that Energon's metadata are made of."""

_TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
                      byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
                           content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset,
                                                   content_byte_size);
"""


@dataclass(frozen=True)
class EnergonShard:
    """Tar with the facts that Energon needs.

    Attributes:
        path: path of the tar.
        sha256: checksum of the tar.
        samples: number of samples in the tar, as its ``.idx`` counts them.
        rows: columns `ENERGON_COLUMNS` of usable samples.
        places: their places in the tar.
        split: "train" or "val".
        excluded: keys of unusable samples.
    """

    path: str
    sha256: str
    samples: int
    rows: pa.Table
    places: Sequence[int]
    split: str = "train"
    excluded: Sequence[str] = ()


def energon_files(shards: Iterable[EnergonShard], folder: Path) -> dict[str, bytes | Path]:
    """Return path to content of every file of ``.nv-meta/``; equal shards give equal bytes.

    Args:
        shards: tars in the order of the manifest, read one by one.
        folder: folder for the database, which grows with the number of samples.
    """
    # Shards come one by one; rows of their samples go to the database, the rest is a line a shard.
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    excluded: list[str] = []
    fingerprint = ""
    path = folder / "energon.sqlite"
    db = sqlite3.connect(path)
    db.executescript(_TABLES)
    for index, shard in enumerate(shards):
        _insert(db, index, shard)
        counts[shard.path] = shard.samples
        parts[shard.split].append(shard.path)
        excluded += [f"{shard.path}/{key}" for key in shard.excluded]
        fingerprint += shard.sha256
    db.executescript(_INDEXES)
    db.commit()
    db.close()
    # A name of the index that follows from its shards, where Energon draws one at random.
    info = {"energon_version": ENERGON_VERSION, "shard_counts": counts}
    return {
        ".nv-meta/.info.json": json.dumps(info, indent=2).encode(),
        ".nv-meta/dataset.yaml": b"__module__: megatron.energon\n__class__: CrudeWebdataset\n",
        ".nv-meta/split.yaml": _split_yaml(parts, excluded).encode(),
        ".nv-meta/index.sqlite": path,
        ".nv-meta/index.uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, fingerprint)).encode(),
    }


def _split_yaml(parts: dict[str, list[str]], excluded: list[str]) -> str:
    lines = ["split_parts:"]
    for name, listed in parts.items():
        lines += [f"  {name}:", *(f"  - {_yaml(path)}" for path in listed)] if listed else [f"  {name}: []"]
    lines += ["exclude:", *(f"- {_yaml(name)}" for name in excluded)] if excluded else ["exclude: []"]
    return "\n".join([*lines, ""])


def _yaml(name: str) -> str:
    """Quote a name for Energon, which expands braces like a shell."""
    if re.fullmatch(r"[\w./-]+", name, re.ASCII):
        return name
    return json.dumps(re.sub(r"([\\{}])", r"\\\1", name))


def _insert(db: sqlite3.Connection, shard_index: int, shard: EnergonShard) -> None:
    keys, offsets, sizes = (shard.rows.column(name).to_pylist() for name in ENERGON_COLUMNS[:3])
    members = shard.rows.column("members").combine_chunks()
    ends = np.cumsum(members.value_lengths().to_numpy()).tolist()
    parts = [pc.struct_field(members.flatten(), name).to_pylist() for name in ("suffix", "offset", "size")]
    first = 0
    # A sample, then its parts: the file's pages follow from the order.
    for sample_index, key, offset, size, end in zip(shard.places, keys, offsets, sizes, ends, strict=True):
        db.execute(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?)", (shard_index, key, sample_index, offset, size)
        )
        parts_of_sample = zip(
            repeat(shard_index), repeat(sample_index), *(part[first:end] for part in parts), strict=False
        )
        db.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts_of_sample)
        first = end
