"""Planning problem of a training step, from the shapes of its clips."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.batch import Microbatch, Pack, UpcomingMicrobatch
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.training.manifest import ManifestEntry


class ClipShape(NamedTuple):
    """Properties of a clip that determine its cost.

    Attributes:
        bucket: frames, height and width.
        length: number of tokens, S.
        pixels: True if the VAE encodes the clip; False if latents are stored.
    """

    bucket: Bucket
    length: int
    pixels: bool


class BatchShape(NamedTuple):
    """Clips and captions of a microbatch or a pack.

    Attributes:
        clips: one per sample.
        captions: True if a cascade encodes the captions.
    """

    clips: tuple[ClipShape, ...]
    captions: bool


class ClipCosts(Protocol):
    """Costs of clips, each by itself."""

    def call_s(self, module: Module) -> float:
        """Return the constant seconds of a cascade, independent of contents and degree."""

    def dit_s(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        """Return seconds of the DiT's forward and backward, [n, K]."""

    def dit_bytes(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        """Return bytes of the DiT's activations per GPU, [n, K]."""

    def vae_s(self, clips: Sequence[ClipShape]) -> Floats:
        """Return seconds of the VAE on one GPU, [n]."""

    def vae_bytes(self, clips: Sequence[ClipShape]) -> Floats:
        """Return bytes of the VAE's activations per GPU, [n]."""

    @property
    def caption_s(self) -> float:
        """Seconds of the text encoder per caption, on one GPU."""

    def resident_bytes(self, module: Module) -> float:
        """Return constant bytes on each GPU of a cascade: weights, gradients and other state."""


def shape_of(entry: ManifestEntry) -> BatchShape:
    """Return the shape of an entry of the manifest."""
    batch = entry.batch
    pairs: Sequence[tuple[Bucket, int]]
    if isinstance(batch, Pack):
        pairs = list(zip(batch.buckets, batch.lengths, strict=True))
    else:
        assert isinstance(batch, Microbatch)
        pairs = [(batch.bucket, batch.length)] * len(batch.keys)
    clips = (
        ClipShape(*pair, not video.dtype.is_floating_point)
        for pair, video in zip(pairs, entry.videos, strict=True)
    )
    return BatchShape(tuple(clips), bool(entry.contexts) and not entry.text_stored)


def announced_shape(coming: UpcomingMicrobatch, encoded: bool) -> BatchShape:
    """Return the shape of a microbatch or pack that the stream has announced.

    Args:
        coming: announced buckets, lengths and stored parts.
        encoded: True if a cascade encodes captions without a stored context.
    """
    return BatchShape(
        tuple(map(ClipShape, coming.buckets, coming.lengths, coming.pixels)), encoded and not coming.contexts
    )


def problem_of(
    shapes: Sequence[BatchShape],
    costs: ClipCosts,
    gpus: int,
    degrees: Sequence[int],
    memory_bytes: float,
    pixels_per_token: int,
    block: int = 1,
) -> Problem:
    """Return the planning problem of a step.

    The samples of a microbatch or pack run together, so that times and bytes add up. A VAE's clips are dealt
    round-robin to the GPUs of its group, and the longest share counts. A group larger than the number of clips
    is infeasible.

    Args:
        shapes: microbatches of the step.
        costs: costs of clips.
        gpus: number of GPUs.
        degrees: degrees of DiTs; other modules use these or one GPU.
        memory_bytes: memory of one GPU.
        pixels_per_token: pixels per token within a frame; a DiT has at most as many GPUs as tokens in a frame, so that
            none is empty.
        block: number of neighbouring GPUs that shard the DiT's weights, so that it runs on multiples of them.

    Raises:
        UsageError: a module fits at no degree (`Problem`), or clips have fewer tokens in a frame than any degree.
    """
    degrees_K = np.array(sorted({1, *degrees}), np.int64)
    size = (len(shapes), len(Module), len(degrees_K))
    seconds_SMK, memory_SMK = np.full(size, np.inf), np.empty(size)
    memory_SMK[:] = np.array([costs.resident_bytes(module) for module in Module])[:, None]
    # Costs of each different clip once; a step has few shapes and many samples.
    clips = list(dict.fromkeys(clip for shape in shapes for clip in shape.clips))
    clip_indices = {clip: index for index, clip in enumerate(clips)}
    dit_nK, bytes_nK = costs.dit_s(clips, degrees_K), costs.dit_bytes(clips, degrees_K)
    pixels_n = np.array([clip.pixels for clip in clips])
    vae_n, vae_bytes_n = (
        np.where(pixels_n, costs.vae_s(clips), 0.0),
        np.where(pixels_n, costs.vae_bytes(clips), 0.0),
    )
    # Tokens in a frame limit the ranks that divide it.
    frame_n = np.array([clip.bucket.height * clip.bucket.width // pixels_per_token for clip in clips])
    for sample, shape in enumerate(shapes):
        sample_clips = np.array([clip_indices[clip] for clip in shape.clips])
        dit_K, tokens = (
            np.isin(degrees_K, degrees) & (degrees_K % block == 0),
            int(frame_n[sample_clips].sum()),
        )
        cut_K = dit_K & (degrees_K <= max(1, tokens))
        if not cut_K.any():
            raise UsageError(
                f"a microbatch of {shape.clips[0].bucket} has {tokens} tokens in a frame, fewer than the"
                f" {degrees_K[dit_K].min()} ranks of the narrowest DiT: leave such small buckets out, or allow fewer"
                " ranks (train.cascade.degrees, parallel.dp_shard)"
            )
        # The DiT: calls add up over the clips of a microbatch, at each degree that may divide them.
        seconds_SMK[sample, Module.DIT] = np.where(
            cut_K, costs.call_s(Module.DIT) + dit_nK[sample_clips].sum(axis=0), np.inf
        )
        memory_SMK[sample, Module.DIT] += bytes_nK[sample_clips].sum(axis=0)
        # The VAE: clips are dealt to the ranks in turn, and the longest share counts.
        if any(clip.pixels for clip in shape.clips):
            for degree_index, degree in enumerate(degrees_K.tolist()):
                if degree <= len(sample_clips):
                    shares = [sample_clips[first::degree] for first in range(degree)]
                    longest_s = max(vae_n[share].sum() for share in shares)
                    seconds_SMK[sample, Module.VAE, degree_index] = costs.call_s(Module.VAE) + longest_s
                    memory_SMK[sample, Module.VAE, degree_index] += max(
                        vae_bytes_n[share].sum() for share in shares
                    )
        # The text encoder runs on one GPU.
        if shape.captions:
            seconds_SMK[sample, Module.TEXT, degrees_K == 1] = costs.call_s(
                Module.TEXT
            ) + costs.caption_s * len(sample_clips)
    return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, memory_bytes)
