"""Latents and text contexts that stand for clips and captions: what a manifest says of them; reading their bytes."""

import hashlib
import io
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loader.errors import RunError
from loader.settings import Settings

LATENT, CONTEXT = "latent.npy", "context.npy"
"""Suffixes: float16 or float32 [views, C, T, H, W], and [tokens, D]: the tokens that count, and no others."""

_MAX_HEADER_BYTES = 4096


class LatentBucket(Settings):
    """What is stored of one bucket's samples, and why."""

    frames: int
    height: int
    width: int
    samples: int = Field(description="of the bucket, those that failed too")
    latent: tuple[int, int, int, int] | None = Field(
        description="channels, frames, rows and columns of a sample's latents; null: encoded on the fly, from clips"
    )
    encode_s: float | None = Field(description="measured seconds of encoding a sample; null: not measured")
    step_share: float | None = Field(
        description="of a sample's seconds in a step; null: its cost is not known"
    )
    latent_bytes: int = Field(description="of an average sample, all its views, stored or not")
    clip_bytes: int = Field(description="of an average sample")
    why: str = Field(description="it was chosen so")


class LatentText(Settings):
    """The stored contexts of captions."""

    encoder: dict[str, Any] = Field(description="what fixes their values")
    width: int = Field(description="D, values of a token")
    pooled_width: int = Field(
        description="values of the first row that stand for the whole caption; 0: none do"
    )
    empty: str = Field(description="path of the empty caption's context")


class Latents(Settings):
    """The section ``latents`` of a manifest."""

    source: str = Field(description="URI of the dataset they were made from")
    source_index: str = Field(description="sha256 of its index, which fixes its content")
    tokenizer: dict[str, Any] = Field(description="what fixes the values of the latents")
    text: LatentText | None = Field(description="null: captions are encoded on the fly")
    shapes: dict[str, Any] = Field(
        description="the configuration that gave each sample its bucket and its frames"
    )
    seed: int | None = Field(description="of the frames of each view; null where a clip has only one view")
    dtype: Literal["float16", "float32"]
    device: str = Field(description="they were computed on")
    buckets: tuple[LatentBucket, ...]

    def shape(self, frames: int, height: int, width: int) -> tuple[int, int, int, int] | None:
        """Channels, frames, rows and columns of latents of a bucket; None where clips are encoded on the fly."""
        return self._shapes.get((frames, height, width))

    @property
    def complete(self) -> bool:
        """Whether no sample is left to be encoded on the fly."""
        return all(bucket.latent or not bucket.samples for bucket in self.buckets)

    @property
    def channels(self) -> int | None:
        """Of the latents; None where none are stored."""
        return next((bucket.latent[0] for bucket in self.buckets if bucket.latent), None)

    @cached_property
    def _shapes(self) -> dict[tuple[int, int, int], tuple[int, int, int, int] | None]:
        return {(one.frames, one.height, one.width): one.latent for one in self.buckets}


def empty_path(data: bytes) -> str:
    """Return the path of the empty caption's context, which fixes its bytes."""
    return f"latents/empty-{hashlib.sha256(data).hexdigest()[:12]}.context.npy"


def view_of(
    member: bytes | memoryview, dtype: str, shape: tuple[int, int, int, int], passed: int
) -> NDArray[Any]:
    """The latents of one pass, [C, T, H, W]: a view of the bytes of a KEY.latent.npy.

    Args:
        member: its bytes.
        dtype: that the manifest promises.
        shape: that the manifest promises.
        passed: how often the sample was drawn before; views follow each other.

    Raises:
        RunError: the bytes hold something else.
    """
    views = array_of(member, dtype, (None, *shape), LATENT)
    if not len(views):
        raise RunError(f"its {LATENT} holds no view")
    latent_CTHW: NDArray[Any] = views[passed % len(views)]
    return latent_CTHW


def array_of(member: bytes | memoryview, dtype: str, shape: Sequence[int | None], name: str) -> NDArray[Any]:
    """The array in the bytes of a .npy file, a view of them: nothing is unpickled and nothing allocated.

    Args:
        member: the bytes.
        dtype: that it must have.
        shape: that it must have; None stands for any size.
        name: of the member, for messages.

    Raises:
        RunError: it is another file, or of another type or shape.
    """
    head = io.BytesIO(member[:_MAX_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(head)
        if version != (1, 0):
            raise ValueError(f"format {version}")
        found, by_columns, kind = np.lib.format.read_array_header_1_0(head, max_header_size=_MAX_HEADER_BYTES)
    except ValueError as error:
        raise RunError(f"its {name} is no .npy file: {error}") from error
    fits = len(found) == len(shape) and all(
        want is None or have == want for have, want in zip(found, shape, strict=True)
    )
    if by_columns or kind != np.dtype(dtype) or not fits:
        promised = ["any" if size is None else size for size in shape]
        raise RunError(f"its {name} holds {kind} {list(found)} where {dtype} {promised} was promised")
    if len(member) != head.tell() + math.prod(found) * kind.itemsize:
        raise RunError(f"its {name} has {len(member)} bytes, which {kind} {list(found)} does not fill")
    return np.frombuffer(member, kind, math.prod(found), head.tell()).reshape(found)
