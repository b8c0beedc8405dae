"""Files from which the page tells what other thresholds would keep: states, lengths and scores of all cut clips."""

import base64
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset import ACCOUNTING, Dataset
from reelweave.pipelines.configuration.shell import shell_line
from reelweave.pipelines.report.numbers.places import places
from reelweave.pipelines.report.numbers.scores import Scores, ScoreStats
from reelweave.pipelines.report.web.files import Files, data_file


def can_be_set(stats: ScoreStats) -> list[str]:
    """Return the keys of `filters` that bound a score and on which something depends."""
    is_set = stats.min_threshold is not None or stats.max_threshold is not None
    return stats.bounds if stats.distinct > 1 or is_set else []


def threshold_files(dataset: Dataset, scores: Scores) -> Files:
    """Return the files by path: one of all clips, and one per score that a threshold can be set on."""
    names = [stats.name for stats in scores.all_stats if can_be_set(stats)]
    return Files(
        {"data/clips.js": partial(_clips, dataset, scores)},
        {f"data/score-{name}.js": partial(_score, scores, name) for name in names},
    )


def update_command(dataset: Dataset) -> str:
    """Return the command that curates the dataset again, without the thresholds that change; "" for a foreign one."""
    inputs = dataset.manifest.config.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(entry, str) for entry in inputs):
        return ""
    root = dataset.storage.root
    return shell_line(
        ["reelweave", "curate", *inputs, "--out", root, "--config", f"{root}/curate.yaml", "--update"]
    )


def _clips(dataset: Dataset, scores: Scores) -> bytes:
    clips = scores.clips
    seconds_N = pc.subtract(clips.column("end_s"), clips.column("start_s")).to_numpy()
    columns: dict[str, NDArray[np.float64]] = {
        "state": scores.state_N.astype(np.float64),
        "seconds": seconds_N,
        "original": _originals(dataset, clips).astype(np.float64),
    }
    return data_file("clips", {name: pack_column(column) for name, column in columns.items()})


def _score(scores: Scores, name: str) -> bytes:
    return data_file(f"score-{name}", {"values": pack_column(scores.columns[name])})


def _originals(dataset: Dataset, clips: pa.Table) -> NDArray[np.int64]:
    """Return the row [N] of the clip that each duplicate repeats; -1 for all others."""
    key, state = clips.column("key"), clips.column("state")
    kept_K = np.flatnonzero(pc.equal(state, "kept").to_numpy())
    copies_X = np.flatnonzero(pc.equal(state, "duplicate").to_numpy())
    names = ["key", "state", "duplicate_of"]
    parts = (
        part.filter(pc.field("state") == "duplicate") for part in dataset.table_parts("accounting", names)
    )
    empty = pa.schema([ACCOUNTING.field(name) for name in names]).empty_table()
    duplicates = pa.concat_tables([empty, *parts])
    place_X = places(key.take(copies_X), duplicates.column("key"))
    of_X = duplicates.column("duplicate_of").take(pa.array(place_X, mask=place_X < 0))
    original_X = places(of_X, key.take(kept_K))
    found_N = np.full(len(clips), -1, np.int64)
    found_N[copies_X] = np.where(original_X >= 0, kept_K[original_X] if len(kept_K) else -1, -1)
    return found_N


def pack_column(values_N: NDArray[np.float64]) -> dict[str, str | float]:
    """Return a column in base64, as integers over a power of ten where these are the same numbers.

    The smallest integer of their size stands for a missing value.
    """
    missing_N = np.isnan(values_N)
    for over in (1.0, 1e6):  # curation rounds scores to six decimals
        with np.errstate(invalid="ignore"):
            whole_N = np.where(missing_N, 0.0, np.round(values_N * over))
        if np.array_equal(whole_N[~missing_N] / over, values_N[~missing_N]):
            max_value = np.abs(whole_N).max(initial=0)
            for kind in ("int8", "int16", "int32"):
                if max_value <= np.iinfo(kind).max:
                    numbers_N = np.where(missing_N, np.iinfo(kind).min, whole_N)
                    return {kind: _base64(numbers_N.astype(np.dtype(kind).newbyteorder("<"))), "over": over}
    return {"float64": _base64(values_N.astype("<f8"))}


def _base64(column_N: NDArray[Any]) -> str:
    return base64.b64encode(column_N.tobytes()).decode()
