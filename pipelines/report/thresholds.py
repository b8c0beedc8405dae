"""Files from which the page tells what other thresholds would keep: states, lengths and scores of all cut clips."""

import base64
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.filters import FilterConfig
from loader.dataset import Dataset
from pipelines.report.numbers.scores import Scores, ScoreStats
from pipelines.report.web.files import data_file

BOUNDS = ("min", "max")

_MISSING = -(2**31)  # of integers, where a clip has no such score


def can_be_set(stats: ScoreStats) -> list[str]:
    """Return the keys of `FilterConfig` that bound a score and on which something depends."""
    keys = [key for bound in BOUNDS if (key := f"{bound}_{stats.name}") in FilterConfig.model_fields]
    is_set = stats.min_threshold is not None or stats.max_threshold is not None
    return keys if stats.distinct > 1 or is_set else []


def threshold_files(dataset: Dataset, scores: Scores) -> dict[str, bytes]:
    """Return the files by path: one of all clips, and one per score that a threshold can be set on."""
    return dict(_files(dataset, scores))


def update_command(dataset: Dataset) -> str:
    """Return the command that curates the dataset again, without the thresholds that change; "" for a foreign one."""
    inputs = dataset.manifest.config.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(one, str) for one in inputs):
        return ""
    root = dataset.storage.root
    return shlex.join(
        ["reelweave", "curate", *inputs, "--out", root, "--config", f"{root}/curate.yaml", "--update"]
    )


def _files(dataset: Dataset, scores: Scores) -> Iterator[tuple[str, bytes]]:
    clips = scores.clips
    seconds_N = pc.subtract(clips.column("end_s"), clips.column("start_s")).to_numpy()
    columns: dict[str, NDArray[np.float64]] = {
        "state": scores.state_N.astype(np.float64),
        "seconds": seconds_N,
        "original": _originals(dataset, clips).astype(np.float64),
    }
    yield "data/clips.js", data_file("clips", {name: packed(column) for name, column in columns.items()})
    for stats in scores.all_stats:
        if can_be_set(stats):
            column = {"values": packed(scores.columns[stats.name])}
            yield f"data/score-{stats.name}.js", data_file(f"score-{stats.name}", column)


def _originals(dataset: Dataset, clips: pa.Table) -> NDArray[np.int64]:
    """Return the row [N] of the clip that each duplicate repeats; -1 for all others."""
    key_N, state_N = (clips.column(name).to_pylist() for name in ("key", "state"))
    kept = {key: row for row, (key, state) in enumerate(zip(key_N, state_N, strict=True)) if state == "kept"}
    duplicates = dataset.accounting.filter(pc.field("state") == "duplicate").select(["key", "duplicate_of"])
    of = dict(zip(*duplicates.to_pydict().values(), strict=True))
    return np.array(
        [
            kept.get(of.get(key, ""), -1) if state == "duplicate" else -1
            for key, state in zip(key_N, state_N, strict=True)
        ],
        np.int64,
    )


def packed(values_N: NDArray[np.float64]) -> dict[str, str | float]:
    """Return a column in base64, as integers of 32 bits over a power of ten where these are the same numbers."""
    for over in (1.0, 1e6):  # curation rounds scores to six decimals
        with np.errstate(invalid="ignore"):
            whole_N = np.where(np.isnan(values_N), _MISSING, np.round(values_N * over))
        if (np.isnan(values_N) | (np.abs(whole_N) < -_MISSING)).all():
            numbers_N = whole_N.astype("<i4")
            if np.array_equal(
                np.where(numbers_N == _MISSING, np.nan, numbers_N / over), values_N, equal_nan=True
            ):
                return {"int32": _base64(numbers_N), "over": over}
    return {"float64": _base64(values_N.astype("<f8"))}


def _base64(column_N: NDArray[Any]) -> str:
    return base64.b64encode(column_N.tobytes()).decode()
