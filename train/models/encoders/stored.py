"""Placeholders for encoders whose output is stored in the dataset, so that they are not loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reelweave.loader.errors import RunError
from reelweave.train.models.encoders.text import EncodedText, TextEncoder
from reelweave.train.models.encoders.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class StoredEncoders:
    """Encoders that a run does not need.

    Attributes:
        channels: channels of stored latents; None: clips are encoded on the fly.
        empty_MD: context of the empty caption; None: captions are encoded on the fly.
        pooled_width: pooled width, as in `TextEncoder`.
    """

    channels: int | None = None
    empty_MD: torch.Tensor | None = None
    pooled_width: int = 0


class StoredLatents(Tokenizer):
    """Tokenizer that knows the shape of latents and encodes nothing.

    Args:
        compression: video frames, pixel rows and pixel columns per latent.
        channels: channels of a latent.
    """

    def __init__(self, compression: tuple[int, int, int], channels: int) -> None:
        super().__init__()
        self.compression, self._channels = compression, channels

    @property
    def channels(self) -> int:
        return self._channels

    def encode(self, video_BCTHW: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Raise an error, since no tokenizer is loaded."""
        raise RunError("a clip without stored latents came to a run that loads no tokenizer")

    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Raise an error, since no tokenizer is loaded."""
        raise RunError("this run loads no tokenizer; sample from its checkpoint instead")


class StoredText(TextEncoder):
    """Text encoder that knows only the empty caption's context.

    Args:
        empty_MD: context of the empty caption.
        pooled_width: pooled width, as in `TextEncoder`.
    """

    def __init__(self, empty_MD: torch.Tensor, pooled_width: int) -> None:
        super().__init__()
        self.width, self.pooled_width = empty_MD.shape[1], pooled_width
        self.register_buffer("_empty", empty_MD.float(), persistent=False)
        self._empty: torch.Tensor

    def encode(self, captions: Sequence[str]) -> EncodedText:
        """Return the stored context for empty captions.

        Raises:
            RunError: a caption is not empty.
        """
        if any(captions):
            raise RunError("a caption without a stored context came to a run that loads no text encoder")
        context_BMD = self._empty.expand(len(captions), -1, -1)
        mask_BM = torch.ones(context_BMD.shape[:2], dtype=torch.bool)
        return EncodedText(context_BMD, torch.ones_like(mask_BM, device=self._empty.device), mask_BM)
