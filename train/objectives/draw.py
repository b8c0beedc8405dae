"""The random part of training, which belongs to the sample and not to the process that draws it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draw:
    """The random part of a microbatch, on the CPU.

    Attributes:
        normals: standard normal numbers that decide the times, [B].
        noise: standard normal, [B, C, T, H, W].
        dropped: which samples are trained without their caption, B of them.
    """

    normals: torch.Tensor
    noise: torch.Tensor
    dropped: list[bool]


def draw(
    caption_dropout: float, seed: int, keys: Sequence[str], passes: Sequence[int], latent_shape: Sequence[int]
) -> Draw:
    """Time, noise and caption dropout of each sample as a function of (seed, key, pass).

    A sample draws the same values on any rank, in any batch and after a resume.

    Args:
        caption_dropout: share of dropped captions.
        seed: of the run.
        keys: the samples' keys, length B.
        passes: how often each sample was drawn before, length B.
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
    """Which samples lose their caption, as `draw` has it; arguments as there."""
    return [
        _drops(caption_dropout, _generator(seed, key, passed))
        for key, passed in zip(keys, passes, strict=True)
    ]


def _generator(seed: int, key: str, passed: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{passed}/{key}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def _drops(caption_dropout: float, generator: torch.Generator) -> bool:
    """The first number that a sample draws."""
    return torch.rand((), generator=generator).item() < caption_dropout
