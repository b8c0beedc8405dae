"""Stages that work on clips already cut: each reads clips, asks a model, and closes what it found in the ledger."""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.ledger import Ledger, digest
from curate.records import Record, Row
from loader.errors import RunError

Work = Callable[[Sequence[Row], Callable[[Row], bytes]], Sequence[Row]]
"""(rows, how to read the clip of one) -> a result for each: JSON values; "fault" and why when there is none."""


@dataclass(frozen=True)
class ClipStage:
    """One stage over clips as runners call it; rows it has nothing to do for pass through.

    Attributes:
        name: of the stage, as in a row's ``todo``.
        fingerprint: of its configuration.
        ledger: entries go here, staged clips come from here.
        work: what is done.
        identity: row -> what the result belongs to.
        go_on: row -> whether later stages are still wanted.
        after_dedup: whether the stage waits until duplicates are known, and sees only clips that are kept.
    """

    name: str
    fingerprint: str
    ledger: Ledger
    work: Work
    identity: Callable[[Row], str]
    go_on: Callable[[Row], bool] = lambda _: True
    after_dedup: bool = False

    def __call__(self, rows: list[Row]) -> Iterator[Row]:
        """Yields every row, those with work done carrying its result in ``found``."""
        mine = [row for row in rows if self.name in row.get("todo", ())]
        if mine:
            results = self.work(mine, lambda row: read_clip(self.ledger, row))
            for row, result in zip(mine, results, strict=True):
                self.ledger.close(self.name, self.fingerprint, self.identity(row), result)
                row["found"][self.name] = result
                row["todo"] = [name for name in row["todo"] if name != self.name] if self.go_on(row) else []
        yield from rows


def read_clip(ledger: Ledger, row: Row) -> bytes:
    """The clip of a row: staged, or in the shard of an earlier revision that ``row["place"]`` names.

    Raises:
        RunError: it is in neither.
    """
    clip_id = Record.from_row(row["record"]).clip_id
    try:
        return ledger.read_clip(clip_id)
    except FileNotFoundError:
        if not row.get("place"):
            raise RunError(
                f"clip {clip_id} is missing from {ledger.storage.uri('.ledger/clips')};"
                " run again with --retry-failed to cut it anew"
            ) from None
    shard, offset, size = row["place"]
    return ledger.storage.read(shard, offset, size)


def clip_identity(row: Row) -> str:
    """Of a result that depends on the clip's bytes alone."""
    return Record.from_row(row["record"]).clip_id


def caption_identity(row: Row) -> str:
    """Of a caption, which may also come from what stands beside the source."""
    record = Record.from_row(row["record"])
    return f"{record.clip_id}-{digest(record.source, row['caption'] or '', row['tags'])[:16]}"


def pack_array(array: NDArray[Any]) -> Row:
    """An array as JSON values."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def unpack_array(packed: Row) -> NDArray[Any]:
    """What `pack_array` packed."""
    flat = np.frombuffer(base64.b64decode(packed["data"]), np.dtype(packed["dtype"]))
    return flat.reshape(packed["shape"])
