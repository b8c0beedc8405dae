"""What Megatron-Energon needs to open the folder as it is: ``.nv-meta/`` (its own layout, version 7)."""

import json
import sqlite3
import tempfile
import uuid
from pathlib import Path

from loader.dataset.schema import Row
from loader.dataset.shard import ShardRecord

ENERGON_VERSION = "7.4.1"

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


def energon_files(shards: list[ShardRecord]) -> dict[str, bytes]:
    """Path to content of every file of ``.nv-meta/``; the same bytes for the same shards."""
    info = {
        "energon_version": ENERGON_VERSION,
        "shard_counts": {shard.path: len(shard.rows) for shard in shards},
    }
    parts = {name: [shard.path for shard in shards if shard.split == name] for name in ("train", "val")}
    fingerprint = "".join(shard.sha256 for shard in shards)
    return {
        ".nv-meta/.info.json": json.dumps(info, indent=2).encode(),
        ".nv-meta/dataset.yaml": b"__module__: megatron.energon\n__class__: CrudeWebdataset\n",
        ".nv-meta/split.yaml": _split_yaml(parts).encode(),
        ".nv-meta/index.sqlite": _sqlite([shard.rows for shard in shards]),
        ".nv-meta/index.uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, fingerprint)).encode(),
    }


def _split_yaml(parts: dict[str, list[str]]) -> str:
    lines = []
    for name in ("train", "val", "test"):
        listed = parts.get(name, [])
        lines += [f"  {name}:", *(f"  - {path}" for path in listed)] if listed else [f"  {name}: []"]
    return "\n".join(["split_parts:", *lines, "exclude: []", ""])


def _sqlite(shards: list[list[Row]]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="reelweave-energon-") as folder:
        path = Path(folder) / "index.sqlite"
        db = sqlite3.connect(path)
        db.executescript(_TABLES)
        for number, rows in enumerate(shards):
            db.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                [(number, row["key"], place, row["offset"], row["size"]) for place, row in enumerate(rows)],
            )
            db.executemany(
                "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                [
                    (number, place, member["suffix"], member["offset"], member["size"])
                    for place, row in enumerate(rows)
                    for member in row["members"]
                ],
            )
        db.executescript(_INDEXES)
        db.commit()
        db.close()
        return path.read_bytes()
