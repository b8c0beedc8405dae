"""Samples that fit no bucket, and changes of the buckets that would take them in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.columns import distinct
from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset.plan_index import PlanIndex

_MOST_SIZES = 4


@dataclass(frozen=True)
class Change:
    """A change of the bucket configuration.

    Attributes:
        words: advice, in words.
        keys: keys of ``buckets`` with their new values.
        takes_in: samples without a bucket that have one then.
    """

    words: str
    keys: dict[str, Any]
    takes_in: int


@dataclass(frozen=True)
class JointChange:
    """Changes that take in the most samples together, without those that add nothing to the others.

    Attributes:
        words: advice of each, in words.
        keys: keys of ``buckets`` with their new values.
        takes_in: samples without a bucket that have one then.
        yaml: whole ``buckets`` with these changes.
    """

    words: list[str]
    keys: dict[str, Any]
    takes_in: int
    yaml: str


@dataclass(frozen=True)
class TakingIn:
    """Samples without a bucket, and what would take them in.

    Attributes:
        samples: number of samples without a bucket.
        changes: changes, each with the samples that it takes in by itself, most first.
        together: all that is needed; None where no change helps.
    """

    samples: int
    changes: list[Change]
    together: JointChange | None


def taking_in(index: PlanIndex, config: BucketConfig) -> TakingIn:
    """Return changes that would take in samples without a bucket, each tried by itself, and all that is needed.

    Every change only adds a shape or loosens a limit, so no sample loses its bucket. Each is tried by assigning the
    samples anew.

    Args:
        index: plan index of the samples.
        config: shapes and limits.
    """
    return taking_in_rows(index, assign(index, config).unassigned.rows, config)


def taking_in_rows(index: PlanIndex, rows_X: IndexArray, config: BucketConfig) -> TakingIn:
    """Return the same for some samples, all without a bucket.

    Args:
        index: plan index of the samples.
        rows_X: int64 [X], their rows.
        config: shapes and limits.
    """
    outside, count_U = _shapes(index, rows_X)
    candidates = list(_candidates(outside, count_U, config)) if len(rows_X) else []

    def takes_in(keys: dict[str, Any]) -> int:
        still = assign(outside, config.model_copy(update=keys)).unassigned.rows
        return len(rows_X) - int(count_U[still].sum())

    changes = [Change(words, keys, takes_in(keys)) for words, keys in candidates]
    changes.sort(key=lambda change: -change.takes_in)
    needed, max_taken = candidates, takes_in(_join_keys(candidates, config))
    for candidate in reversed(candidates):
        fewer = [other for other in needed if other is not candidate]
        if takes_in(_join_keys(fewer, config)) == max_taken:
            needed = fewer
    return TakingIn(len(rows_X), changes, _together(needed, config, max_taken) if max_taken else None)


def _shapes(index: PlanIndex, rows_X: IndexArray) -> tuple[PlanIndex, IndexArray]:
    """Return a sample of each distinct length, rate and size among some rows, and the number of samples alike."""
    code_X = np.zeros(len(rows_X), np.int64)
    for name in ("frames", "fps", "height", "width"):
        values, place_X = distinct(index.columns()[name][rows_X])
        code_X = distinct(code_X * max(1, len(values)) + place_X)[1].astype(np.int64)
    _, first_U, count_U = np.unique(code_X, return_index=True, return_counts=True)
    rows_U = rows_X[first_U]
    return PlanIndex(**{name: column[rows_U] for name, column in index.columns().items()}), count_U


Candidate = tuple[str, dict[str, Any]]


def _together(needed: Sequence[Candidate], config: BucketConfig, takes_in: int) -> JointChange:
    keys = _join_keys(needed, config)
    wider = BucketConfig.model_validate({**config.model_dump(), **keys})
    text = yaml.safe_dump(
        {"buckets": wider.model_dump(mode="json")}, sort_keys=False, width=100, default_flow_style=None
    )
    return JointChange([words for words, _ in needed], keys, takes_in, text)


def _join_keys(candidates: Sequence[Candidate], config: BucketConfig) -> dict[str, Any]:
    """Return the keys of all candidates together; shapes are added to those of the configuration."""
    values: dict[str, Any] = {}
    for _, keys in candidates:
        for name, value in keys.items():
            before = values.get(name, getattr(config, name))
            more = name in ("frames", "sizes")
            values[name] = (
                (*before, *(element for element in value if element not in before)) if more else value
            )
    return values


def _candidates(outside: PlanIndex, count_X: IndexArray, config: BucketConfig) -> Iterator[Candidate]:
    """Yield changes for samples without a bucket, the ones that lose least of a sample first."""
    # Clips that are too short for every bucket.
    frames_X = config.sampling.available(outside.frames, outside.fps)
    short_X = frames_X < min(config.frames)
    if short_X.any():
        frames = _frames(int(frames_X[short_X].min()), config.compression)
        yield f"allow {frames} frames", {"frames": (*config.frames, frames)}
    # Pictures that fill no size: how much each size would enlarge and crop each distinct shape.
    shape_U, place_X = np.unique(
        np.stack([outside.height, outside.width]).astype(np.int64), axis=1, return_inverse=True
    )
    count_U = np.bincount(place_X.ravel(), count_X)
    height_U1, width_U1 = shape_U[:, :, None]
    height_K, width_K = np.array(config.sizes, dtype=np.float64).T
    upscale_UK = np.maximum(height_K / height_U1, width_K / width_U1)
    ratio_UK = (width_K / height_K) / (width_U1 / height_U1)
    crop_UK = 1 - np.minimum(ratio_UK, 1 / ratio_UK)
    small_U = ~((upscale_UK <= config.max_upscale) & (crop_UK <= config.max_crop)).any(axis=1)
    if not small_U.any():
        return
    # Sizes of their own, the most frequent first; or looser limits.
    proposals = {
        _size(shape_U[:, index], config.compression): None
        for index in np.argsort(-count_U, kind="stable").tolist()
        if small_U[index]
    }
    for size in [size for size in proposals if size not in config.sizes][:_MOST_SIZES]:
        yield f"allow {size[0]} x {size[1]} pixels", {"sizes": (*config.sizes, size)}
    factor = _reach(np.where(crop_UK <= config.max_crop, upscale_UK, np.inf)[small_U])
    if factor is not None:
        yield f"enlarge by up to {factor:g}", {"max_upscale": factor}
    share = _reach(np.where(upscale_UK <= config.max_upscale, crop_UK, np.inf)[small_U])
    if share is not None and share < 1:
        yield f"crop up to {share:.0%}", {"max_crop": share}


def _reach(needed_UK: Floats) -> float | None:
    """Return the limit, in hundredths, at which every resolution that some limit helps fills a size."""
    least_U = needed_UK.min(axis=1)
    helped = least_U[np.isfinite(least_U)]
    return float(np.ceil(100 * helped.max()) / 100) if len(helped) else None


def _frames(available: int, compression: Compression) -> int:
    """Return the largest number of frames up to this one that the model's tokenizer takes whole."""
    first = int(compression.causal)
    max_frames = first + (available - first) // compression.frames * compression.frames
    return max_frames if max_frames > 0 else 1


def _size(shape: IndexArray, compression: Compression) -> tuple[int, int]:
    """Return the largest size in whole tokens within this [height, width], at least one token."""
    height, width = shape.tolist()
    return (
        max(height // compression.height, 1) * compression.height,
        max(width // compression.width, 1) * compression.width,
    )
