"""Scores of all clips that were cut: one column per score, counts per bin and state, and thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.filters import FilterConfig
from reelweave.curate.models.custom.configured import NAME as SCORE_NAME
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.schema import SCORES, STATES
from reelweave.loader.errors import RunError

BINS = 24
FEW = 6
"""Most distinct values that are counted one by one, for a score that no threshold can be set on."""

_ROWS_AT_ONCE = 1 << 13  # whose maps are unfolded, with an entry for each score of each row
_MOST = 1e300  # of a score or a threshold; infinite ones and NaN are not drawn


@dataclass(frozen=True)
class ScoreStats:
    """Distribution of a score.

    Attributes:
        name: name of the score.
        clips: clips that have it.
        missing: clips without it.
        least: smallest value.
        most: largest value.
        distinct: number of distinct values.
        min_threshold: threshold below which clips are rejected; None without one.
        max_threshold: threshold above which clips are rejected; None without one.
        rejected: clips that these two reject, whatever else rejects them; a missing score is rejected.
        bounds: keys of `filters` that a threshold on it can be set by.
        edges: edges of bins of equal width, or the values themselves where they are `FEW` and of no threshold.
        counts: clips per bin, or per value, by state.
    """

    name: str
    clips: int
    missing: int
    least: float
    most: float
    distinct: int
    min_threshold: float | None
    max_threshold: float | None
    rejected: int
    bounds: list[str]
    edges: list[float]
    counts: dict[str, list[int]]

    @property
    def by_value(self) -> bool:
        """True if ``edges`` are single values instead of borders of bins."""
        return len(self.edges) == len(self.counts[STATES[0]])


@dataclass(frozen=True)
class Scores:
    """Scores of all clips as columns, [N] each.

    Attributes:
        clips: key, source, start_s, end_s and state of each clip, as in ``scores.parquet``.
        state_N: place of each clip's state in `STATES`.
        columns: float64 [N] by score; NaN where a clip has none.
        thresholds: set thresholds by key of `FilterConfig`.
        of_stages: names of the scores of users' own stages.
    """

    clips: pa.Table
    state_N: NDArray[np.int8]
    columns: dict[str, NDArray[np.float64]]
    thresholds: dict[str, float]
    of_stages: frozenset[str]

    @classmethod
    def of(cls, dataset: Dataset) -> "Scores":
        """Return the scores of a dataset, with the thresholds that its manifest names.

        Raises:
            RunError: a clip has a score twice.
        """
        tables, parts = [SCORES.remove(SCORES.get_field_index("scores")).empty_table()], []
        for table in dataset.table_parts("scores"):
            parts.append(score_columns(table.column("scores")))
            tables.append(table.drop_columns(["scores"]))
        clips = pa.concat_tables(tables)
        state_indices = pc.fill_null(pc.index_in(clips.column("state"), pa.array(STATES)), len(STATES))
        state_N = state_indices.to_numpy().astype(np.int8)
        columns = joined_columns(parts, [len(table) for table in tables[1:]])
        return cls(clips, state_N, columns, thresholds(dataset), _of_stages(dataset))

    def stats(self, name: str) -> ScoreStats | None:
        """Return the distribution of one score; None where no clip has a value of it."""
        values_N = self.columns[name]
        drawn_N = drawn_mask(values_N)
        values_M, state_M = values_N[drawn_N], self.state_N[drawn_N]
        if not len(values_M):
            return None
        low, high = self.thresholds.get(f"min_{name}"), self.thresholds.get(f"max_{name}")
        distinct = np.unique(values_M)
        bounds = [key for key in (f"min_{name}", f"max_{name}") if self._can_be_set(key, name)]
        by_value = len(distinct) <= FEW and not bounds
        edges = (
            distinct if by_value else bin_edges(float(distinct[0]), float(distinct[-1]), _bins(len(values_M)))
        )
        place_M = np.searchsorted(edges, values_M, side="right") - 1
        bins = len(edges) if by_value else len(edges) - 1
        place_M = np.minimum(place_M, bins - 1)  # the last bin holds its upper edge, too
        counts = {
            state: np.bincount(place_M[state_M == index], minlength=bins).tolist()
            for index, state in enumerate(STATES)
        }
        return ScoreStats(
            name=name,
            clips=len(values_M),
            missing=int(np.isnan(values_N).sum()),
            least=float(distinct[0]),
            most=float(distinct[-1]),
            distinct=len(distinct),
            min_threshold=low,
            max_threshold=high,
            rejected=int(self._rejected_mask(name).sum()),
            bounds=bounds,
            edges=edges.tolist(),
            counts=counts,
        )

    @cached_property
    def all_stats(self) -> list[ScoreStats]:
        """Distributions of all scores, those with a threshold first, then by name."""
        all_found = [stats for name in sorted(self.columns) if (stats := self.stats(name))]
        return sorted(
            all_found, key=lambda stats: stats.min_threshold is None and stats.max_threshold is None
        )

    def _can_be_set(self, key: str, name: str) -> bool:
        return key in FilterConfig.model_fields or name in self.of_stages

    def _rejected_mask(self, name: str) -> NDArray[np.bool_]:
        values_N = self.columns[name]
        low, high = self.thresholds.get(f"min_{name}"), self.thresholds.get(f"max_{name}")
        rejected_N = np.zeros(len(values_N), np.bool_)
        if low is not None:
            rejected_N |= ~(values_N >= low)
        if high is not None:
            rejected_N |= ~(values_N <= high)
        return rejected_N


def joined_columns(
    parts: Sequence[Mapping[str, NDArray[np.float64]]], rows: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Return columns of parts that follow each other, NaN where a part has no such score.

    Args:
        parts: columns of each part by score.
        rows: rows of each part.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.full(count, np.nan)
                for part, count in zip(parts, rows, strict=True)
            ]
        )
        for name in names
    }


def score_columns(scores: pa.ChunkedArray) -> dict[str, NDArray[np.float64]]:
    """Return one column per score from a column of maps.

    Raises:
        RunError: a row has a score twice.
    """
    columns: dict[str, NDArray[np.float64]] = {}
    first = 0
    for chunk in scores.chunks:
        for start in range(0, len(chunk), _ROWS_AT_ONCE):
            maps = chunk.slice(start, _ROWS_AT_ONCE)
            _put(maps, slice(first, first + len(maps)), columns, len(scores))
            first += len(maps)
    return columns


def _put(maps: pa.MapArray, rows_slice: slice, columns: dict[str, NDArray[np.float64]], rows: int) -> None:
    """Write the scores of some rows into their place of the columns, which are made where they are new."""
    offsets = maps.offsets.to_numpy()
    row_K = np.repeat(np.arange(len(maps)), np.diff(offsets))
    inside = slice(int(offsets[0]), int(offsets[-1]))
    name_K, value_K = maps.keys[inside].dictionary_encode(), maps.items[inside].to_numpy(zero_copy_only=False)
    code_K = name_K.indices.to_numpy(zero_copy_only=False)
    for code, name in enumerate(name_K.dictionary.to_pylist()):
        of_name = code_K == code
        row_M = row_K[of_name]
        if (np.diff(row_M) == 0).any():
            raise RunError(f"a table of the dataset says one thing twice: score {name[:40]!r} of one clip")
        if name not in columns:
            columns[name] = np.full(rows, np.nan)
        columns[name][rows_slice][row_M] = value_K[of_name]


def thresholds(dataset: Dataset) -> dict[str, float]:
    """Return the finite thresholds in a manifest, which may be another program's."""
    curate = dataset.manifest.config.get("curate")
    filters = curate.get("filters") if isinstance(curate, dict) else None
    named: Any = filters.items() if isinstance(filters, dict) else ()
    return {
        name: float(value)
        for name, value in named
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
    }


def _of_stages(dataset: Dataset) -> frozenset[str]:
    """Return the names of the scores of users' own stages in a manifest, which may be another program's."""
    stages = dataset.manifest.config.get("stages")
    named = stages.values() if isinstance(stages, dict) else ()
    scores = [
        sections["scores"]
        for sections in named
        if isinstance(sections, dict) and isinstance(sections.get("scores"), dict)
    ]
    # They become names of files.
    return frozenset(name for section in scores for name in section if SCORE_NAME.fullmatch(name))


def drawn_mask(values_N: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values are drawn: neither missing nor infinite."""
    return np.abs(values_N) < _MOST  # false for NaN


def bin_edges(low: float, high: float, bins: int) -> NDArray[np.float64]:
    """Return the edges of bins of equal width; of one bin where the values are equal or very close."""
    edges = np.linspace(low, high, bins + 1 if low < high else 2)
    if low < high and (np.diff(edges) <= 0).any():  # they differ by less than so many bins can tell apart
        edges = np.array([low, high])
    return edges


def _bins(count: int) -> int:
    return min(BINS, max(4, count // 4))
