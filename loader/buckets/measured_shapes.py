"""CSV of a shape benchmark: measurements of microbatches of B samples of S tokens."""

from collections.abc import Sequence

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.base.csv_rows import csv_rows, positive
from reelweave.loader.errors import UsageError

_MAX_ROWS = 1_000_000
_WHOLE = ("batch", "length")


def read_measured(text: str, name: str, columns: Sequence[str]) -> Floats:
    """Read columns of the file, float64 [rows, columns]; other columns are ignored.

    Args:
        text: content of the file.
        name: file name for messages.
        columns: names of the columns; batch and length hold whole numbers.

    Raises:
        UsageError: a column is missing, a value is not a positive number, or there are no or too many rows.
    """
    column_names, lines = csv_rows(text, name)
    missing = [column for column in columns if column not in column_names]
    if missing:
        raise UsageError(f"{name} has no column {missing[0]}; a shape benchmark has {', '.join(columns)}")
    rows: list[list[float]] = []
    for line, row in lines:
        if len(rows) == _MAX_ROWS:
            raise UsageError(f"{name} has more than {_MAX_ROWS} rows; average repeated shapes first")
        rows.append(
            [
                positive(row[column], column, f"{name} line {line}", is_whole=column in _WHOLE)
                for column in columns
            ]
        )
    if not rows:
        raise UsageError(f"{name} holds no timings")
    return np.array(rows)
