"""Locations of the bytes and arrays of clips: in the ledger, or in shards of the present revision."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.run.clip_arrays import ClipArrays
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.tables.clip_locations import places_of
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import Mask, Rows, column, take_rows, texts_of
from reelweave.curate.source_pass.cut_source import arrays_of
from reelweave.curate.source_pass.tasks import ClipPlace


class StoredClips:
    """Bytes of clips by their identity, and arrays by the clips' sources.

    Args:
        inputs: Inputs of the run.
        closed: Clips of closed sources.

    Attributes:
        arrays: Arrays of footage.
    """

    def __init__(self, inputs: RunInputs, closed: ClosedSources) -> None:
        self._ledger, self._closed = inputs.ledger, closed
        self._locations = places_of(inputs.dataset)
        self._ids = TextPlaces(column(self._locations, "id"))
        self.arrays = ClipArrays(inputs.ledger)

    def locate(self, ids: pa.Array) -> pa.Table:
        """Return the location of each clip in the present revision; a row of nulls where it is in no shard."""
        return take_rows(self._locations, self._ids.find(ids))

    def places_of(self, ids: pa.Array) -> Iterator[ClipPlace | None]:
        """Yield the place of each clip in the present revision, by identity of its bytes."""
        for row in self.locate(ids).to_pylist():
            yield None if row["id"] is None else ClipPlace(row["shard"], row["offset"], row["size"])

    def are_in_shards(self, ids: pa.Array) -> Mask:
        """Return which clips lie in a shard of the present revision."""
        return self._ids.find(ids) >= 0

    def staged_ids(self) -> TextPlaces:
        """Return the identities of all staged clips."""
        return TextPlaces(texts_of(self._ledger.blobs.staged_clips()))

    def are_at_hand(self, clips: pa.Table, staged: TextPlaces) -> Mask:
        """Return which clips are staged or lie in a shard."""
        ids = clip_ids(clips)
        return (staged.find(ids) >= 0) | self.are_in_shards(ids)

    def find_arrays(self, clips: pa.Table) -> Rows:
        """Read the arrays of clips' sources; return the row of each clip among them, -1 where it has none."""
        source_indices = np.unique(column(clips, "source").to_numpy()).tolist()
        ids = self._closed.ids.take(pa.array(source_indices, pa.int64())).to_pylist()
        names = [
            arrays_of(identity, self._closed.fingerprint(index))
            for identity, index in zip(ids, source_indices, strict=True)
        ]
        self.arrays.read(names)
        return self.arrays.find(clip_ids(clips), names)
