"""Token lengths computed from shapes alone: S = S_text + S_visual (AdaptiveLoad, section 3.2)."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from reelweave.loader.settings import Settings


class Compression(Settings):
    """Pixels per token along each axis: the VAE's downsampling times the DiT's patch size.

    AdaptiveLoad uses 8 x 16 x 16, causal.
    """

    frames: int = Field(ge=1, description="video frames per token")
    height: int = Field(ge=1, description="pixel rows per token")
    width: int = Field(ge=1, description="pixel columns per token")
    causal: bool = Field(description="the first frame has a latent frame of its own, as in causal video VAEs")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in COMPRESSIONS:
            raise ValueError(f"no model is called {value}; known are {', '.join(COMPRESSIONS)}")
        return COMPRESSIONS[value].model_dump()


def _causal(frames: int, side: int) -> Compression:
    return Compression(frames=frames, height=side, width=side, causal=True)


COMPRESSIONS: dict[str, Compression] = {
    "adaptiveload": _causal(8, 16),
    "cogvideox": _causal(4, 16),
    "cosmos": _causal(8, 16),
    "hunyuanvideo": _causal(4, 16),
    "wan": _causal(4, 16),
    "wan2.2-5b": _causal(4, 32),
}
"""Compressions of known models by name: VAE compression times a DiT patch of 1 x 2 x 2; cosmos means Predict1."""


def visual_tokens(
    frames: ArrayLike, height: ArrayLike, width: ArrayLike, compression: Compression
) -> NDArray[np.int64]:
    """Return S_visual of videos of the given shapes; the arguments broadcast against each other.

    Heights and widths that do not divide are rounded up, since models pad them; so are frames without `causal`.
    A causal VAE encodes whole groups after the first frame and drops the rest:
    (frames - 1) // compression.frames + 1 latent frames.

    Args:
        frames: number of frames, at least 1.
        height: height in pixels.
        width: width in pixels.
        compression: pixels per token along each axis.
    """
    frames = np.asarray(frames, dtype=np.int64)
    latent_frames = (
        (frames - 1) // compression.frames + 1
        if compression.causal
        else _ceil_divide(frames, compression.frames)
    )
    return np.asarray(
        latent_frames * _ceil_divide(height, compression.height) * _ceil_divide(width, compression.width)
    )


def sequence_length(
    text_tokens: ArrayLike, frames: ArrayLike, height: ArrayLike, width: ArrayLike, compression: Compression
) -> NDArray[np.int64]:
    """Return S = S_text + S_visual; the arguments broadcast against each other."""
    return np.asarray(text_tokens, dtype=np.int64) + visual_tokens(frames, height, width, compression)


def _ceil_divide(pixels: ArrayLike, per_token: int) -> NDArray[np.int64]:
    return -(-np.asarray(pixels, dtype=np.int64) // per_token)
