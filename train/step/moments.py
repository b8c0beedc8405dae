"""AdamW's moments in fewer bits than its arithmetic: bfloat16, or 8 bits a value with one scale per block."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional as F

BLOCK = 256
"""Values that share a scale (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, section 2.1)."""
_LEAST_ROW = 64  # values of a row below which its scale would take a good part of what codes save


class Moments(Protocol):
    """Storage of one moment of a weight, as tensors of which each row belongs to a row of the weight."""

    def zeros(self, weight: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of a moment of zeros."""

    def read(self, stored: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the moment in float32, in the shape of its weight."""

    def write_(self, stored: Sequence[torch.Tensor], moment: torch.Tensor, salt: int) -> None:
        """Round a float32 moment into its tensors.

        Args:
            stored: tensors as `zeros` returned them.
            moment: values in the shape of the weight.
            salt: number below 2**31 that differs between steps and moments.
        """


class Wide:
    """Moments in float32, without rounding."""

    def zeros(self, weight: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros_like(weight, dtype=torch.float32)]

    def read(self, stored: Sequence[torch.Tensor]) -> torch.Tensor:
        return stored[0]

    def write_(
        self,
        stored: Sequence[torch.Tensor],
        moment: torch.Tensor,
        salt: int,  # noqa: ARG002 - as `Moments` has it
    ) -> None:
        stored[0].copy_(moment)


class Bfloat16:
    """Moments in bfloat16, rounded up as often as the distance asks for.

    With a decay rate of 0.999 a second moment changes by a thousandth, and bfloat16 has steps of 1 / 256.
    Rounded to the nearest, it would stay where it is.
    """

    def zeros(self, weight: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros_like(weight, dtype=torch.bfloat16)]

    def read(self, stored: Sequence[torch.Tensor]) -> torch.Tensor:
        return stored[0].float()

    def write_(self, stored: Sequence[torch.Tensor], moment: torch.Tensor, salt: int) -> None:
        # Bits that bfloat16 leaves out carry into those that it keeps.
        bits = moment.view(torch.int32) + _random16(moment, salt)
        stored[0].copy_((bits & ~0xFFFF).view(torch.float32))


class EightBits:
    """Moments in one byte per value, the nearest of a map, with a scale for each `BLOCK` values of a row.

    Args:
        signed: True for the first moment. The second one is stored as its root, which is what divides the update: small
            values then keep twice the range.
        device: device of the weights.
    """

    def __init__(self, signed: bool, device: torch.device) -> None:
        self._signed = signed
        values = dynamic_map(signed)
        self._zero = values.index(0.0)
        self._map_256 = torch.tensor(values, device=device)
        self._middles_255 = (self._map_256[1:] + self._map_256[:-1]) / 2

    def zeros(self, weight: torch.Tensor) -> list[torch.Tensor]:
        codes = torch.full_like(weight, self._zero, dtype=torch.uint8)
        blocks = -(-math.prod(weight.shape[1:]) // BLOCK)
        return [codes, weight.new_zeros((len(weight), blocks), dtype=torch.float32)]

    def read(self, stored: Sequence[torch.Tensor]) -> torch.Tensor:
        codes, scales_RB = stored
        values = self._map_256[codes.int()] * _spread(scales_RB, codes)
        return values if self._signed else values.square()

    def write_(
        self,
        stored: Sequence[torch.Tensor],
        moment: torch.Tensor,
        salt: int,  # noqa: ARG002 - as `Moments` has it
    ) -> None:
        codes, scales_RB = stored
        values = moment if self._signed else moment.sqrt()
        row = math.prod(codes.shape[1:])
        padded_RN = F.pad(values.abs().reshape(len(codes), row), (0, scales_RB.shape[1] * BLOCK - row))
        torch.amax(torch.unflatten(padded_RN, 1, (-1, BLOCK)), dim=2, out=scales_RB)
        scaled = values / _spread(torch.where(scales_RB > 0, scales_RB, 1.0), codes)
        codes.copy_(torch.bucketize(scaled, self._middles_255, out_int32=True))


def eight_bits_fit(weight: torch.Tensor) -> bool:
    """Return True if scales take little beside the codes: not for vectors and rows of few values."""
    return weight.ndim > 1 and math.prod(weight.shape[1:]) >= _LEAST_ROW


def _spread(scales_RB: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Return the scale of each value, in the shape of the codes."""
    row = math.prod(codes.shape[1:])
    wide_RBN = scales_RB[:, :, None].expand(-1, -1, BLOCK)
    return wide_RBN.flatten(1)[:, :row].reshape(codes.shape)


def _random16(values: torch.Tensor, salt: int) -> torch.Tensor:
    """Return 16 random bits for each float32 value, int32: a hash of its bits and the salt.

    Replicas of a weight are rounded alike on all ranks. A resumed run goes on as it would have, without the
    state of a generator.
    """
    mixed = (values.view(torch.int32) ^ salt) * -1640531535
    mixed = (mixed ^ (mixed >> 15)) * -2048144777
    mixed = (mixed ^ (mixed >> 13)) * -1028477379
    return (mixed >> 16) & 0xFFFF


def dynamic_map(signed: bool) -> list[float]:
    """Return the 256 values that a byte can mean, ascending, from -1 or 0 to 1 (Dettmers et al., 2022, section 1.3).

    Seven decades, each with values at equal distances: the larger the decade, the more of them.
    """
    positive = []
    for decade in range(7):
        count = 2 ** (decade if signed else decade + 1)
        width = 0.9 / count
        positive += [10.0 ** (decade - 6) * (0.1 + width * (k + 0.5)) for k in range(count)]
    negative = [-value for value in positive] if signed else []
    return sorted([*negative, 0.0, *positive, 1.0])
