"""Rotary positions: pairs of a head's channels rotated by their token's angles (RoFormer, Su et al. 2021, eq. 15)."""

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.shared.rows import accumulator


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotate every pair in the last dimension of ``x``; negated sines invert it.

    Args:
        x: [..., d], d even.
        cos: cosines of the angles, broadcast to [..., d / 2].
        sin: sines of the angles, like ``cos``.
        interleaved: pairs are channels (2i, 2i + 1), as in Wan; otherwise (i, i + d / 2).
    """
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def check_rotation(
    rotation: tuple[torch.Tensor, torch.Tensor], q_BLHd: torch.Tensor, k_BMGd: torch.Tensor
) -> None:
    """Check angles against queries and keys.

    Raises:
        UsageError: shapes differ from [L, d / 2] and [B, L, d / 2]. Or the dtype is neither float32 nor that
            of sums (float64 for float64). Or angles require a gradient, or keys have other positions than
            queries.
    """
    B, L, _, d = q_BLHd.shape
    if k_BMGd.shape[1] != L:
        raise UsageError(
            f"one rotation cannot turn {L} queries and {k_BMGd.shape[1]} keys: their numbers must agree"
        )
    if d % 2:
        raise UsageError(f"heads {d} wide do not divide into pairs: a rotation needs an even width")
    for name, angles in zip(("cos", "sin"), rotation, strict=True):
        if angles.shape not in ((L, d // 2), (B, L, d // 2)):
            raise UsageError(
                f"{name} of the rotation must be [{L}, {d // 2}] or [{B}, {L}, {d // 2}], not {list(angles.shape)}"
            )
        if angles.dtype not in (torch.float32, accumulator(q_BLHd.dtype)):
            raise UsageError(f"{name} of the rotation must be float32, not {angles.dtype}")
        if angles.requires_grad:
            raise UsageError(f"{name} of the rotation asks for a gradient, and gets none: detach it")
    if rotation[0].shape != rotation[1].shape:
        raise UsageError(f"cos and sin of the rotation differ in shape: {[list(x.shape) for x in rotation]}")
