"""Random numbers of training samples, whichever process draws them; for noise see `reelweave.train.step.noise`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reelweave.train.config.first_frames import FirstFramesConfig


@dataclass(frozen=True)
class Draw:
    """Random numbers of a microbatch, on the CPU.

    Attributes:
        normals: standard normal numbers that determine the times, [B].
        dropped: True for samples trained without their caption, B of them.
        num_given: number of latent frames that the model is given of each sample, in image-to-video training.
    """

    normals: torch.Tensor
    dropped: list[bool]
    num_given: list[int]


def draw(
    caption_dropout: float,
    seed: int,
    keys: Sequence[str],
    passes: Sequence[int],
    frames: int,
    first_frames: FirstFramesConfig | None = None,
) -> Draw:
    """Draw time, caption dropout and given frames of each sample as a function of (seed, key, pass).

    A sample draws the same values on any rank, in any batch and after a resume.

    Args:
        caption_dropout: share of dropped captions.
        seed: seed of the run.
        keys: keys of the samples, length B.
        passes: number of earlier draws of each sample, length B.
        frames: latent frames of a sample.
        first_frames: frames to give; None: none.
    """
    dropped, normals, num_given = [], [], []
    for key, passed in zip(keys, passes, strict=True):
        generator = _generator(seed, key, passed)
        dropped.append(_drops(caption_dropout, generator))
        normals.append(torch.randn((), generator=generator))
        num_given.append(_draw_given(first_frames, frames, generator) if first_frames else 0)
    return Draw(torch.stack(normals), dropped, num_given)


def draw_dropped(caption_dropout: float, seed: int, keys: Sequence[str], passes: Sequence[int]) -> list[bool]:
    """Return the caption dropout of `draw`; same arguments."""
    return [
        _drops(caption_dropout, _generator(seed, key, passed))
        for key, passed in zip(keys, passes, strict=True)
    ]


def sample_key(seed: int, key: str, passed: int) -> int:
    """Return the 64-bit seed of a sample's random numbers."""
    digest = hashlib.blake2b(f"{seed}/{passed}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _generator(seed: int, key: str, passed: int) -> torch.Generator:
    return torch.Generator().manual_seed(sample_key(seed, key, passed))


def _draw_given(config: FirstFramesConfig, frames: int, generator: torch.Generator) -> int:
    """Draw the number of given latent frames; at least one of the sample's is left to the model."""
    drops = torch.rand((), generator=generator).item() < config.dropout
    count = int(torch.randint(1, config.max_latent_frames + 1, (), generator=generator))
    return 0 if drops else min(count, frames - 1)


def _drops(caption_dropout: float, generator: torch.Generator) -> bool:
    """Decide caption dropout by the sample's first random number."""
    return torch.rand((), generator=generator).item() < caption_dropout
