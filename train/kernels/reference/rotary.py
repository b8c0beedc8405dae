"""Rotary positions: pairs of a head's channels turned by their token's angles (RoFormer, Su et al. 2021, eq. 15)."""

import torch

from loader.errors import UsageError


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """The last dimension of ``x``, d channels, with every pair turned; minus the sines turn it back.

    Args:
        x: [..., d], d even.
        cos: of the angles, broadcast to [..., d / 2].
        sin: likewise.
        interleaved: pairs are channels (2i, 2i + 1), as in Wan; otherwise (i, i + d / 2).
    """
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def check_rotation(
    rotation: tuple[torch.Tensor, torch.Tensor], q_BLHd: torch.Tensor, k_BMGd: torch.Tensor
) -> None:
    """Refuses angles that do not fit queries and keys.

    Raises:
        UsageError: other shapes than [L, d / 2] and [B, L, d / 2], another type than float32, or angles that ask for
            a gradient; or keys at other positions than the queries.
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
        if angles.dtype != torch.float32:
            raise UsageError(f"{name} of the rotation must be float32, not {angles.dtype}")
        if angles.requires_grad:
            raise UsageError(f"{name} of the rotation asks for a gradient, and gets none: detach it")
    if rotation[0].shape != rotation[1].shape:
        raise UsageError(f"cos and sin of the rotation differ in shape: {[list(x.shape) for x in rotation]}")
