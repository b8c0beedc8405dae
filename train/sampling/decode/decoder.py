"""Interface of decoders: latents to video on the ranks of one video."""

from dataclasses import dataclass
from typing import Protocol

import torch

from reelweave.train.models.encoders.tokenizer import Tokenizer


class GroupDecoder(Protocol):
    """Decoder on the ranks that made a video: `WholeDecoder`, or one that shares its tiles."""

    def __call__(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        """Return the video in [-1, 1], float32 [B, 3, frames, height, width]; a collective with equal arguments.

        The first rank of the video gets it, the others None.
        """


@dataclass(frozen=True, eq=False)
class WholeDecoder:
    """`GroupDecoder` that runs the tokenizer on the first rank.

    Attributes:
        tokenizer: the tokenizer.
        rank: rank of this process among those of the video.
    """

    tokenizer: Tokenizer
    rank: int = 0

    def __call__(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        return self.tokenizer.decode(latents_BCTHW) if self.rank == 0 else None
