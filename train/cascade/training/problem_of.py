"""The planning problem of a step, from the shapes of its clips."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from loader.base.arrays import Floats, Places
from loader.batch import Coming, Microbatch, Pack
from loader.buckets.buckets import Bucket
from train.cascade.problem import Module, Problem
from train.cascade.training.manifest import Entry


class Clip(NamedTuple):
    """All that decides what a sample costs.

    Attributes:
        bucket: its shape.
        length: S.
        pixels: whether it is encoded; else its latents are stored.
    """

    bucket: Bucket
    length: int
    pixels: bool


class Shape(NamedTuple):
    """A microbatch or a pack.

    Attributes:
        clips: of its samples.
        captions: whether they are encoded in a cascade.
    """

    clips: tuple[Clip, ...]
    captions: bool


class ClipCosts(Protocol):
    """What clips cost, each alone."""

    def call_s(self, module: Module) -> float:
        """Seconds of a cascade, whatever it holds and on how many GPUs."""

    def dit_s(self, clips: Sequence[Clip], degrees_K: Places) -> Floats:
        """Seconds of forward and backward, [n, K]."""

    def dit_bytes(self, clips: Sequence[Clip], degrees_K: Places) -> Floats:
        """Bytes of activations on a GPU, [n, K]."""

    def vae_s(self, clips: Sequence[Clip]) -> Floats:
        """Seconds of one GPU, [n]."""

    def vae_bytes(self, clips: Sequence[Clip]) -> Floats:
        """Bytes of activations on a GPU, [n]."""

    @property
    def caption_s(self) -> float:
        """Seconds of one GPU."""

    def resident_bytes(self, module: Module) -> float:
        """What lies on each GPU of a cascade, whatever it holds: weights, gradients and all else."""


def shape_of(entry: Entry) -> Shape:
    """Of a microbatch or a pack that was told of."""
    batch = entry.batch
    pairs: Sequence[tuple[Bucket, int]]
    if isinstance(batch, Pack):
        pairs = list(zip(batch.buckets, batch.lengths, strict=True))
    else:
        assert isinstance(batch, Microbatch)
        pairs = [(batch.bucket, batch.length)] * len(batch.keys)
    clips = (
        Clip(*pair, not video.dtype.is_floating_point)
        for pair, video in zip(pairs, entry.videos, strict=True)
    )
    return Shape(tuple(clips), bool(entry.contexts) and not entry.text_stored)


def shape_coming(coming: Coming, encoded: bool) -> Shape:
    """Of a microbatch or a pack that is foreseen.

    Args:
        coming: what is known of it.
        encoded: whether captions without a stored context are encoded in a cascade.
    """
    return Shape(
        tuple(map(Clip, coming.buckets, coming.lengths, coming.pixels)), encoded and not coming.contexts
    )


def problem_of(
    shapes: Sequence[Shape],
    costs: ClipCosts,
    gpus: int,
    degrees: Sequence[int],
    memory_bytes: float,
    places: int,
) -> Problem:
    """The problem of a step.

    Samples of a microbatch or a pack run together, so that their times and bytes add up. A VAE's clips are dealt out
    to the GPUs of its group in turn, and the GPU with the longest share counts; with more GPUs than clips some would
    have none.

    Args:
        shapes: of its microbatches.
        costs: of the modules.
        gpus: that there are.
        degrees: that a DiT may have; others have these, or one GPU.
        memory_bytes: of a GPU.
        places: pixels of a frame that make a token; a DiT has no more GPUs than its clips have tokens in a frame, so
            that each GPU has some.

    Raises:
        UsageError: see `Problem`.
    """
    degrees_K = np.array(sorted({1, *degrees}), np.int64)
    size = (len(shapes), len(Module), len(degrees_K))
    seconds_SMK, memory_SMK = np.full(size, np.inf), np.empty(size)
    memory_SMK[:] = np.array([costs.resident_bytes(module) for module in Module])[:, None]
    clips = list(dict.fromkeys(clip for shape in shapes for clip in shape.clips))
    numbers = {clip: number for number, clip in enumerate(clips)}
    dit_nK, bytes_nK = costs.dit_s(clips, degrees_K), costs.dit_bytes(clips, degrees_K)
    pixels_n = np.array([clip.pixels for clip in clips])
    vae_n, vae_bytes_n = (
        np.where(pixels_n, costs.vae_s(clips), 0.0),
        np.where(pixels_n, costs.vae_bytes(clips), 0.0),
    )
    frame_n = np.array([clip.bucket.height * clip.bucket.width // places for clip in clips])
    for sample, shape in enumerate(shapes):
        own = np.array([numbers[clip] for clip in shape.clips])
        cut_K = np.isin(degrees_K, degrees) & (degrees_K <= max(1, int(frame_n[own].sum())))
        seconds_SMK[sample, Module.DIT] = np.where(
            cut_K, costs.call_s(Module.DIT) + dit_nK[own].sum(axis=0), np.inf
        )
        memory_SMK[sample, Module.DIT] += bytes_nK[own].sum(axis=0)
        if any(clip.pixels for clip in shape.clips):
            for place, degree in enumerate(degrees_K.tolist()):
                if degree <= len(own):
                    shares = [own[first::degree] for first in range(degree)]
                    longest_s = max(vae_n[share].sum() for share in shares)
                    seconds_SMK[sample, Module.VAE, place] = costs.call_s(Module.VAE) + longest_s
                    memory_SMK[sample, Module.VAE, place] += max(vae_bytes_n[share].sum() for share in shares)
        if shape.captions:
            seconds_SMK[sample, Module.TEXT, degrees_K == 1] = costs.call_s(
                Module.TEXT
            ) + costs.caption_s * len(own)
    return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, memory_bytes)
