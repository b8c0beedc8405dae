"""Manifest of a step: metadata of all microbatches, gathered on all ranks without pixels, latents and contexts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from reelweave.loader.batch import BadSample, Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.plan.position import Position
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.distributed.world import World

_SAID = (
    *("keys", "captions", "passes", "datasets", "step", "epoch", "weight"),
    *("missing", "denominator", "step_samples", "mean_samples", "slot", "slots"),
)


class ManifestEntry(NamedTuple):
    """One microbatch or pack in the manifest.

    Attributes:
        owner: rank that has read it.
        batch: metadata, without pixels, latents and contexts.
        videos: shape and dtype of each clip: integer pixels or floating-point latents.
        contexts: shape and dtype of each caption's context; empty if the DiT's ranks embed words themselves.
        text_stored: True if the owner has read the contexts from the dataset.
    """

    owner: int
    batch: Microbatch | Pack
    videos: tuple[TensorSpec, ...]
    contexts: tuple[TensorSpec, ...]
    text_stored: bool

    @property
    def encodes(self) -> bool:
        """True if some clip comes as pixels."""
        return any(not video.dtype.is_floating_point for video in self.videos)


def exchange(
    local_batches: Sequence[Microbatch | Pack],
    contexts: Callable[[Microbatch | Pack], Sequence[TensorSpec]],
    world: World,
) -> list[ManifestEntry]:
    """Gather all microbatches of a step, ordered by rank and identical on every rank; a collective.

    Args:
        local_batches: microbatches of this rank.
        contexts: returns the context shapes that the text encoder makes if none are stored; empty if the DiT's
            ranks embed words themselves.
        world: all ranks.
    """
    rank_texts = world.gather_text(json.dumps([_describe_batch(batch, contexts) for batch in local_batches]))
    after = local_batches[-1].after
    return [_entry(row, owner, after) for owner, rows in enumerate(rank_texts) for row in json.loads(rows)]


def clips_of(batch: Microbatch | Pack) -> Sequence[torch.Tensor]:
    """Return pixels or latents of each clip."""
    if isinstance(batch, Pack):
        return batch.videos
    return (batch.video_BCTHW if batch.latents_BCTHW is None else batch.latents_BCTHW).unbind()


def part_of(tensor: torch.Tensor) -> TensorSpec:
    """Return shape and dtype of a tensor."""
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


def _describe_batch(
    batch: Microbatch | Pack, contexts: Callable[[Microbatch | Pack], Sequence[TensorSpec]]
) -> dict[str, Any]:
    context_specs = contexts(batch) if batch.contexts is None else list(map(part_of, batch.contexts))
    return {name: getattr(batch, name) for name in _SAID} | {
        "bad": list(map(asdict, batch.bad)),
        "packed": isinstance(batch, Pack),
        "buckets": list(map(asdict, batch.buckets if isinstance(batch, Pack) else [batch.bucket])),
        "lengths": batch.lengths if isinstance(batch, Pack) else [batch.length],
        "videos": [_part_said(part_of(clip)) for clip in clips_of(batch)],
        "contexts": list(map(_part_said, context_specs)),
        "text_stored": batch.contexts is not None,
    }


def _entry(row: dict[str, Any], owner: int, after: Position) -> ManifestEntry:
    common = {name: row[name] for name in _SAID}
    common |= {name: tuple(row[name]) for name in ("keys", "captions", "passes", "datasets")}
    common |= {"bad": tuple(BadSample(**fields) for fields in row["bad"]), "after": after}
    buckets, nothing = [Bucket(**fields) for fields in row["buckets"]], torch.empty(0, dtype=torch.uint8)
    batch: Microbatch | Pack
    if row["packed"]:
        batch = Pack(buckets=tuple(buckets), lengths=tuple(row["lengths"]), videos=(), **common)
    else:
        batch = Microbatch(bucket=buckets[0], length=row["lengths"][0], video_BCTHW=nothing, **common)
    videos, contexts = (tuple(map(_part, row[name])) for name in ("videos", "contexts"))
    return ManifestEntry(owner, batch, videos, contexts, row["text_stored"])


def _part_said(part: TensorSpec) -> list[Any]:
    return [list(part.shape), str(part.dtype).removeprefix("torch.")]


def _part(shape_and_dtype: list[Any]) -> TensorSpec:
    shape, dtype = shape_and_dtype
    return TensorSpec(tuple(shape), getattr(torch, dtype))
