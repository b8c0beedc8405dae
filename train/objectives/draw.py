"""Random numbers of training samples, independent of the process that draws them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draw:
    """Random numbers of a microbatch, on the CPU.

    Attributes:
        normals: standard normal numbers that determine the times, [B].
        noise: standard normal noise, [B, C, T, H, W].
        dropped: True for samples trained without their caption, B of them.
    """

    normals: torch.Tensor
    noise: torch.Tensor
    dropped: list[bool]


def draw(
    caption_dropout: float, seed: int, keys: Sequence[str], passes: Sequence[int], latent_shape: Sequence[int]
) -> Draw:
    """Draw time, noise and caption dropout of each sample as a function of (seed, key, pass).

    A sample draws the same values on any rank, in any batch and after a resume.

    Args:
        caption_dropout: share of dropped captions.
        seed: seed of the run.
        keys: keys of the samples, length B.
        passes: number of earlier draws of each sample, length B.
        latent_shape: (C, T, H, W) of one sample.
    """
    dropped, normals, noise = [], [], []
    for key, passed in zip(keys, passes, strict=True):
        generator = _generator(seed, key, passed)
        dropped.append(_drops(caption_dropout, generator))
        normals.append(torch.randn((), generator=generator))
        noise.append(torch.randn(tuple(latent_shape), generator=generator))
    return Draw(torch.stack(normals), torch.stack(noise), dropped)


def draw_dropped(caption_dropout: float, seed: int, keys: Sequence[str], passes: Sequence[int]) -> list[bool]:
    """Return the caption dropout of `draw`; same arguments."""
    return [
        _drops(caption_dropout, _generator(seed, key, passed))
        for key, passed in zip(keys, passes, strict=True)
    ]


def _generator(seed: int, key: str, passed: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{passed}/{key}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def _drops(caption_dropout: float, generator: torch.Generator) -> bool:
    """Decide caption dropout by the sample's first random number."""
    return torch.rand((), generator=generator).item() < caption_dropout
