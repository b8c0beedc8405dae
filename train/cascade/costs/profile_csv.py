"""Profile of a run's cascades as CSV, the input of cost fits."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.base.csv_rows import csv_rows, positive
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.problem import Module

MODULES = tuple(module.name.lower() for module in Module)

_MOST_ROWS = 100_000


class MeasuredCascade(NamedTuple):
    """Measured time and memory of one cascade; the columns of the profile.

    Attributes:
        module: text, vae or dit.
        batch: number of videos, B.
        frames: frames of a video.
        height: height in pixels.
        width: width in pixels.
        length: number of tokens S, with the longest caption.
        degree: number of ranks of the microbatch.
        seconds: median over rounds, maximum over ranks.
        peak_gib: peak memory above the state before, maximum over ranks; None on a CPU.
    """

    module: str
    batch: int
    frames: int
    height: int
    width: int
    length: int
    degree: int
    seconds: float
    peak_gib: float | None


_WHOLE = ("batch", "frames", "height", "width", "length", "degree")


@dataclass(frozen=True, eq=False)
class Profile:
    """Columns of a profile as arrays.

    Attributes:
        module: `Module` of each row, int64 [n].
        batch: number of videos B, int64 [n].
        size_n3: frames, height and width, int64 [n, 3].
        length: number of tokens S, int64 [n].
        degree: int64 [n].
        seconds: float64 [n].
        peak_gib: float64 [n]; NaN where it was not measured.
    """

    module: IndexArray
    batch: IndexArray
    size_n3: IndexArray
    length: IndexArray
    degree: IndexArray
    seconds: Floats
    peak_gib: Floats

    def where(self, chosen: Flags | NDArray[np.intp]) -> "Profile":
        """Return the selected rows."""
        return Profile(*(column[chosen] for column in vars(self).values()))

    def of(self, module: Module) -> "Profile":
        """Select the rows of a module."""
        return self.where(self.module == module)


def profile_csv(rows: Iterable[MeasuredCascade]) -> str:
    """Format a profile as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(MeasuredCascade._fields)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()


def read_profile(text: str, name: str) -> Profile:
    """Parse a profile; extra columns are ignored.

    Args:
        text: contents of the file.
        name: file name, for messages.

    Raises:
        UsageError: a column is missing, a value is wrong, or there are no or too many rows; names row and column.
    """
    header, lines = csv_rows(text, name)
    missing = [column for column in MeasuredCascade._fields if column not in header]
    if missing:
        raise UsageError(f"{name} has no column {missing[0]}; make it with `reelweave bench cascades`")
    rows: list[tuple[list[int], list[float]]] = []
    for line, row in lines:
        if len(rows) == _MOST_ROWS:
            raise UsageError(f"{name} has more than {_MOST_ROWS} rows; give fewer measurements")
        rows.append(_row(row, f"{name} line {line}"))
    if not rows:
        raise UsageError(f"{name} holds no rows; make it with `reelweave bench cascades`")
    whole_n8, real_n2 = (np.array(columns) for columns in zip(*rows, strict=True))
    module, batch, frames, height, width, length, degree = whole_n8.astype(np.int64).T
    return Profile(module, batch, np.stack([frames, height, width], axis=1), length, degree, *real_n2.T)


def _row(row: dict[str, str | None], where: str) -> tuple[list[int], list[float]]:
    if row["module"] not in MODULES:
        raise UsageError(f"{where}: module is {row['module']!r}; it is one of {', '.join(MODULES)}")
    integers = [
        MODULES.index(row["module"]),
        *(positive(row[column], column, where, is_whole=True) for column in _WHOLE),
    ]
    # A cascade may need no memory.
    peak = positive(row["peak_gib"], "peak_gib", where, zero=True) if row["peak_gib"] != "" else float("nan")
    return [int(integer) for integer in integers], [positive(row["seconds"], "seconds", where), peak]
