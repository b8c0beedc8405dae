"""Scores and attributes of an index, by name: what a condition may name, and with which values."""

from collections import Counter
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.blend.selection.condition import WORDS
from reelweave.loader.blend.selection.names import FieldName, field_name
from reelweave.loader.dataset import Dataset

MOST_FIELDS = 200
"""Most names that are summed up, in the order in which they come."""

_SAMPLED = 100_000
_MOST_VALUES = 1000
_COMMON = 5


@dataclass(frozen=True)
class FieldSummary:
    """Values of a score or an attribute over a dataset.

    Attributes:
        name: name of the field.
        home: "scores" for numbers, "attributes" for texts.
        samples: number of samples that have it.
        least: smallest number; None for texts.
        median: median of at most 100,000 numbers, evenly spread; None for texts.
        most: largest number; None for texts.
        distinct: number of different texts; None for numbers, and above 1,000.
        common: the most frequent texts with their numbers of samples, where at most 1,000 differ.
    """

    name: str
    home: Literal["scores", "attributes"]
    samples: int
    least: float | None = None
    median: float | None = None
    most: float | None = None
    distinct: int | None = None
    common: tuple[tuple[str, int], ...] = ()

    @property
    def written(self) -> str:
        """The field as a condition names it, such as ``aesthetic``, ``scores.width`` or ``attributes['odd name']``."""
        if not all(part.isidentifier() and not iskeyword(part) for part in self.name.split(".")):
            return f"{self.home}[{self.name!r}]"
        is_free = field_name(self.name) == FieldName(self.name, "", None) and self.name.lower() not in WORDS
        return self.name if is_free else f"{self.home}.{self.name}"


@dataclass
class _Numbers:
    samples: int = 0
    least: float = np.inf
    most: float = -np.inf
    drawn: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, values: NDArray[np.float64], stride: int) -> None:
        self.samples += len(values)
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        self.drawn.append(values[::stride])

    def summary(self, name: str) -> FieldSummary:
        median = float(np.median(np.concatenate(self.drawn)))
        return FieldSummary(name, "scores", self.samples, self.least, median, self.most)


@dataclass
class _Texts:
    samples: int = 0
    counts: Counter[str] | None = field(default_factory=Counter)

    def add(self, values: pa.Array) -> None:
        self.samples += len(values)
        if self.counts is not None:
            self.counts.update({one["values"]: one["counts"] for one in values.value_counts().to_pylist()})
            self.counts = self.counts if len(self.counts) <= _MOST_VALUES else None

    def summary(self, name: str) -> FieldSummary:
        if self.counts is None:
            return FieldSummary(name, "attributes", self.samples)
        common = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_COMMON]
        return FieldSummary(name, "attributes", self.samples, distinct=len(self.counts), common=tuple(common))


def index_fields(dataset: Dataset) -> list[FieldSummary]:
    """Return the scores and attributes of a dataset, by name; numbers that are not finite are left out."""
    numbers_of, texts_of = dict[str, _Numbers](), dict[str, _Texts]()
    stride = max(1, len(dataset) // _SAMPLED)
    for table in dataset.table_parts("index", ("scores", "attributes")):
        for name, values in _by_name(table.column("scores")):
            finite = values.to_numpy()[np.isfinite(values.to_numpy())]
            if len(finite) and (name in numbers_of or len(numbers_of) < MOST_FIELDS):
                numbers_of.setdefault(name, _Numbers()).add(finite, stride)
        for name, values in _by_name(table.column("attributes")):
            if name in texts_of or len(texts_of) < MOST_FIELDS:
                texts_of.setdefault(name, _Texts()).add(values)
    scores = [numbers_of[name].summary(name) for name in sorted(numbers_of)]
    return scores + [texts_of[name].summary(name) for name in sorted(texts_of)]


def _by_name(column: pa.ChunkedArray) -> list[tuple[str, pa.Array]]:
    """Return the values of a map column by name."""
    pairs = []
    for chunk in column.chunks:
        begin, end = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        names, items = chunk.keys.slice(begin, end - begin), chunk.items.slice(begin, end - begin)
        encoded = names.dictionary_encode()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            pairs.append((name, items.filter(pc.equal(encoded.indices, index))))
    return pairs
