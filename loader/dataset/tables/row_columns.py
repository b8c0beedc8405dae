"""Columns of the index that plans do not need, by row: mapped from one file for all processes of a machine."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.dataset.schema import INDEX

ROW_COLUMNS = ("key", "source", "split", "start_s", "end_s", "duration_s", "attributes", "scores")
"""Columns that describe a sample to a training loop, beside those of the plan index."""

ROW_SCHEMA = pa.schema([INDEX.field(name) for name in ROW_COLUMNS])


class RowColumns:
    """`ROW_COLUMNS` of a dataset; the index is read once per machine, at the first call.

    Args:
        node: files shared by the processes of this machine.
        name: name of the dataset's content.
        parts: function that reads columns of the index by parts.
    """

    def __init__(
        self, node: NodeFiles, name: str, parts: Callable[[Sequence[str]], Iterator[pa.Table]]
    ) -> None:
        def make() -> Iterator[pa.RecordBatch]:
            for table in parts(ROW_COLUMNS):
                yield from table.cast(ROW_SCHEMA).to_batches()

        self._batches = node.batches(f"{name}.rows", ROW_SCHEMA, make)
        self._starts = np.cumsum([0, *(len(batch) for batch in self._batches)])

    def take(self, row_numbers: IndexArray) -> pa.Table:
        """Return some rows, in the order of their numbers as given."""
        batch_of = np.searchsorted(self._starts, row_numbers, side="right") - 1
        places = zip(batch_of.tolist(), (row_numbers - self._starts[batch_of]).tolist(), strict=True)
        # Slices of one row: `take` of a few rows of maps costs some ten times as much.
        slices = [self._batches[number].slice(row, 1) for number, row in places]
        return pa.Table.from_batches(slices, ROW_SCHEMA).combine_chunks()
