"""Stored latents and text contexts, in place of clips and captions: manifest section, and parsing of their bytes."""

import hashlib
import io
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.loader.dataset.tars.npy_header import npy_header
from reelweave.loader.errors import RunError
from reelweave.loader.settings import Settings

LATENT, CONTEXT = "latent.npy", "context.npy"
"""Suffixes: float16 or float32 [views, C, T, H, W], and [tokens, D] without padding tokens."""

_MAX_HEADER_BYTES = 4096


class LatentBucket(Settings):
    """Storage decision for one bucket's latents."""

    frames: int
    height: int
    width: int
    samples: int = Field(description="samples of the bucket, failed ones included")
    latent: tuple[int, int, int, int] | None = Field(
        description="channels, frames, rows and columns of a sample's latents; null: encode clips during training"
    )
    encode_s: float | None = Field(description="measured seconds to encode a sample; null: not measured")
    step_share: float | None = Field(
        description="share of encoding in a sample's seconds per step; null: unknown cost"
    )
    latent_bytes: int = Field(description="mean bytes of a sample's latents, all views, stored or not")
    clip_bytes: int = Field(description="mean bytes of a sample's clip")
    why: str = Field(description="reason for the decision")


class LatentText(Settings):
    """Stored contexts of captions."""

    encoder: dict[str, Any] = Field(description="configuration that determines the contexts")
    width: int = Field(description="D, values per token")
    pooled_width: int = Field(
        description="values of the pooled embedding in the first row; 0: no pooled embedding"
    )
    empty: str = Field(description="path of the empty caption's context")


class Latents(Settings):
    """Section ``latents`` of a manifest."""

    source: str = Field(description="URI of the dataset that was encoded")
    source_index: str = Field(description="sha256 of that dataset's index, which determines its content")
    tokenizer: dict[str, Any] = Field(description="configuration that determines the latents")
    text: LatentText | None = Field(description="stored contexts; null: captions are encoded during training")
    shapes: dict[str, Any] = Field(
        description="configuration that determined each sample's bucket and frames"
    )
    seed: int | None = Field(description="seed of the frames of each view; null: one view per clip")
    dtype: Literal["float16", "float32"]
    device: str = Field(description="device that computed the latents")
    buckets: tuple[LatentBucket, ...]

    def shape(self, frames: int, height: int, width: int) -> tuple[int, int, int, int] | None:
        """Return channels, frames, rows and columns of a bucket's latents; None if clips are encoded in training."""
        return self._shapes.get((frames, height, width))

    @property
    def complete(self) -> bool:
        """True if no sample is left to encode during training."""
        return all(bucket.latent or not bucket.samples for bucket in self.buckets)

    @property
    def channels(self) -> int | None:
        """Number of channels; None if no latents are stored."""
        return next((bucket.latent[0] for bucket in self.buckets if bucket.latent), None)

    @cached_property
    def _shapes(self) -> dict[tuple[int, int, int], tuple[int, int, int, int] | None]:
        return {(bucket.frames, bucket.height, bucket.width): bucket.latent for bucket in self.buckets}


def empty_path(data: bytes) -> str:
    """Return the path of the empty caption's context, derived from its bytes."""
    return f"latents/empty-{hashlib.sha256(data).hexdigest()[:12]}.context.npy"


def view_of(
    member: bytes | memoryview, dtype: str, shape: tuple[int, int, int, int], passed: int
) -> NDArray[Any]:
    """Return the latents of one pass, [C, T, H, W], as a view of the bytes of a KEY.latent.npy.

    Args:
        member: bytes of the file.
        dtype: dtype in the manifest.
        shape: shape in the manifest.
        passed: number of earlier draws of the sample; passes cycle through the views.

    Raises:
        RunError: the content contradicts the manifest.
    """
    views = array_of(member, dtype, (None, *shape), LATENT)
    if not len(views):
        raise RunError(f"its {LATENT} holds no view")
    latent_CTHW: NDArray[Any] = views[passed % len(views)]
    return latent_CTHW


def array_of(member: bytes | memoryview, dtype: str, shape: Sequence[int | None], name: str) -> NDArray[Any]:
    """Return the array of a .npy file as a view of its bytes, without unpickling or allocation.

    Args:
        member: bytes of the file.
        dtype: required dtype.
        shape: required shape; None accepts any size.
        name: name of the member, for messages.

    Raises:
        RunError: the file is no .npy file, or has another dtype or shape.
    """
    head = io.BytesIO(member[:_MAX_HEADER_BYTES])
    try:
        array_shape, by_columns, kind = npy_header(head, _MAX_HEADER_BYTES)
    except ValueError as error:
        raise RunError(f"its {name} is no .npy file: {error}") from error
    fits = len(array_shape) == len(shape) and all(
        want is None or have == want for have, want in zip(array_shape, shape, strict=True)
    )
    if by_columns or kind != np.dtype(dtype) or not fits:
        promised = ["any" if size is None else size for size in shape]
        raise RunError(f"its {name} holds {kind} {list(array_shape)} where {dtype} {promised} was promised")
    if len(member) != head.tell() + math.prod(array_shape) * kind.itemsize:
        raise RunError(f"its {name} has {len(member)} bytes, which {kind} {list(array_shape)} does not fill")
    return np.frombuffer(member, kind, math.prod(array_shape), head.tell()).reshape(array_shape)
