"""Everything a dataset knows of one clip, as JSON values."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.dataset import Dataset, Row
from reelweave.loader.dataset.samples.copied_frames import CopiedFrames
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.pipelines.configuration.recipes.given import filter_states
from reelweave.pipelines.configuration.recipes.model import recipe_of
from reelweave.pipelines.report.clips.lookup import rows_of_key
from reelweave.pipelines.report.clips.media import locate_clip

_TOUCHING_S = 1e-6
_OF_CAPTIONS = ("name", "number", "caption", "text_tokens", "caption_source", "caption_provenance", "reason")
_OF_TRANSITIONS = ("start_s", "end_s", "kind", "probability", "decision")
_FINITE = 1e300  # of a threshold in a manifest, which may be another program's


def clip_facts(dataset: Dataset, row: Row, buckets: BucketConfig) -> dict[str, Any]:
    """Return what is known of a row of the accounting.

    Args:
        dataset: the row's dataset.
        row: row of ``accounting.parquet``.
        buckets: allowed shapes, for the clip's bucket.
    """
    key = row["key"]
    row_number = None if key is None or row["state"] != "kept" else dataset.row_number(key)
    decision = {name: row[name] for name in ("state", "stage", "reason", "score", "threshold")}
    facts: dict[str, Any] = {
        "dataset": dataset.storage.root,
        "key": key,
        **decision,
        "source": row["source"],
        "start_s": row["start_s"],
        "end_s": row["end_s"],
        "duplicate_of": row["duplicate_of"],
    }
    if row_number is not None:
        facts |= _sample_facts(dataset, row_number, buckets)
        facts["captions"] = _further_captions(dataset, str(key))
        if dataset.manifest.foreign is not None:  # the source that metadata names, else tar and key
            facts["source"] = dataset.row(row_number)["source"]
    if key is not None:
        facts["scores"] = _scores(dataset, row, row_number)
        facts["recipe"] = _recipe(dataset, facts["scores"])
        facts["pictures"] = _describe_pictures(facts) if dataset.manifest.foreign is None else None
        facts["duplicates"] = _duplicates(dataset, key)
        facts["also"] = [_span(other) for other in rows_of_key(dataset, key) if other != row]
        facts["transitions"] = transitions_between(dataset, row["source"], row["start_s"], row["end_s"])
        facts["file"] = _file(dataset, key)
        facts["mbps"] = _mbps(facts)
    return facts


def thresholds(dataset: Dataset) -> dict[str, tuple[float | None, float | None]]:
    """Return the lowest and the highest accepted value by score, of the run that made a dataset."""
    curate = dataset.manifest.config.get("curate")
    filters = curate.get("filters") if isinstance(curate, dict) else None
    limits: dict[str, tuple[float | None, float | None]] = {}
    for name, value in filters.items() if isinstance(filters, dict) else ():
        bound, _, score = name.partition("_")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _FINITE
        if is_number and bound in ("min", "max"):
            low, high = limits.get(score, (None, None))
            limits[score] = (float(value), high) if bound == "min" else (low, float(value))
    return limits


def _sample_facts(dataset: Dataset, row_number: int, buckets: BucketConfig) -> dict[str, Any]:
    row = dataset.row(row_number)
    # Its bucket in training, or why it has none.
    assignment = assign(dataset.plan_index, buckets)
    bucket_index = assignment.bucket_of.item(row_number)
    if bucket_index >= 0:
        size = assignment.batch_sizes[bucket_index]
        bucket = {
            **asdict(assignment.buckets[bucket_index]),
            "tokens": assignment.lengths[bucket_index],
            "batch": size.batch,
            "bound": size.bound,
        }
    else:
        lost = list(assignment.unassigned.rows).index(row_number)
        bucket = {"none": assignment.unassigned.reasons[assignment.unassigned.reason_of[lost]]}
    names = ("source_sha256", "attributes", "frames", "fps", "height", "width", "duration_s", "audio")
    return {
        **{name: row[name] for name in names},
        **{name: row[name] for name in ("caption", "caption_source", "caption_provenance", "text_tokens")},
        **{name: row[name] for name in ("split", "bin")},
        "bucket": bucket,
        "shard": {
            "uri": dataset.shard_storage.uri(row["shard"]),
            **{name: row[name] for name in ("offset", "size", "members")},
        },
        "sha256": row["sha256"],
    }


def _scores(dataset: Dataset, row: Row, row_number: int | None) -> list[dict[str, Any]]:
    """Return the clip's scores, each with the thresholds of the run and whether it lies within them."""
    mine = dataset.rows_where("scores", "key", row["key"])
    of_source = [span for span in mine if span["source"] == row["source"]] or mine
    if dataset.manifest.foreign is not None and row_number is not None:  # which has no scores but the index's
        of_source = to_rows(dataset.rows_at(np.array([row_number]), ["scores"]))
    bounds = thresholds(dataset)
    score_rows = []
    for name, value in sorted(of_source[0]["scores"].items()) if of_source else ():
        low, high = bounds.get(name, (None, None))
        # JSON has no NaN.
        finite = value if math.isfinite(value) else None
        passes = None
        if low is not None or high is not None:
            passes = finite is not None and (low is None or value >= low) and (high is None or value <= high)
        score_rows.append({"name": name, "value": finite, "min": low, "max": high, "passes": passes})
    return score_rows


def _recipe(dataset: Dataset, scores: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the recipe of the dataset and which of its filters reject the clip; None without a readable recipe."""
    curate = dataset.manifest.config.get("curate")
    try:
        recipe = recipe_of(curate.get("recipe")) if isinstance(curate, dict) else None
    except ValueError:  # the report says so
        recipe = None
    if recipe is None or not isinstance(curate, dict):
        return None
    rejected = {f"{bound}_{score['name']}" for score in scores for bound in _rejecting(score)}
    names = [
        state.entry.name
        for state in filter_states(recipe, curate)
        if any(key.removeprefix("filters.") in rejected for key in state.values if key.startswith("filters."))
    ]
    return {"name": recipe.name, "rejected_by": names}


def _rejecting(score: dict[str, Any]) -> list[str]:
    """Return which bounds of a score reject it: "min", "max"; none where it has no value."""
    value, low, high = score["value"], score["min"], score["max"]
    bounds = (("min", low is not None and value < low), ("max", high is not None and value > high))
    return [bound for bound, rejects in bounds if rejects] if value is not None else []


def transitions_between(
    dataset: Dataset, source: str, start_s: float | None = None, end_s: float | None = None
) -> list[Row]:
    """Return the transitions of a source, or those that touch a span of it; none of a dataset without that table."""
    transitions: list[Row] = []
    for table in dataset.further_parts("transitions") or ():
        touching = pc.equal(table.column("source"), source)
        if start_s is not None and end_s is not None:
            touching = pc.and_(touching, pc.greater_equal(table.column("end_s"), start_s - _TOUCHING_S))
            touching = pc.and_(touching, pc.less_equal(table.column("start_s"), end_s + _TOUCHING_S))
        transitions += [
            {name: row[name] for name in _OF_TRANSITIONS} for row in to_rows(table.filter(touching))
        ]
    return transitions


def _further_captions(dataset: Dataset, key: str) -> list[Row]:
    """Return the further captions of a sample; none of a dataset without that table."""
    return [
        {name: row[name] for name in _OF_CAPTIONS}
        for table in dataset.further_parts("captions") or ()
        for row in to_rows(table.filter(pc.equal(table.column("key"), key)))
    ]


def _describe_pictures(facts: dict[str, Any]) -> str | None:
    """Return in words which frames of a kept clip are copies; None where its scores do not tell."""
    values = {score["name"]: score["value"] for score in facts["scores"]}
    copied = CopiedFrames.of_scores(values) if "frames" in facts else None
    return None if copied is None else copied.describe(facts["frames"])


def _mbps(facts: dict[str, Any]) -> float | None:
    """Return the bit rate of a kept clip with its sound, megabits per second."""
    seconds = facts.get("duration_s")
    return 8e-6 * facts["file"]["size"] / seconds if seconds and facts["file"] else None


def _duplicates(dataset: Dataset, key: str) -> list[dict[str, Any]]:
    return [_span(row) for row in dataset.rows_where("accounting", "duplicate_of", key)]


def _span(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("key", "source", "start_s", "end_s", "state", "reason")}


def _file(dataset: Dataset, key: str) -> dict[str, Any] | None:
    """Return where the clip's bytes lie; None if they were not kept."""
    clip = locate_clip(dataset, key)
    if clip is None:
        return None
    return {"uri": clip.storage.uri(clip.path), "offset": clip.offset, "size": clip.size}
