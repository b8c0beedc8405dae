"""Codes of parameter sets of H.264 and HEVC, and NAL units within packets."""

from __future__ import annotations

import itertools
import re

from reelweave.loader.dataset.samples.frames.bits import ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import nal_units

MOST_UNITS = 4096
"""NAL units of a packet, above which it is refused: no picture has as many slices."""

_EMULATED, _GUARDED = re.compile(rb"\0\0(?=[\0-\3])"), b"\\000\\000\\003"


def exp_golomb(value: int) -> str:
    """Return an Exp-Golomb code without a sign, as a string of zeros and ones."""
    code = f"{value + 1:b}"
    return "0" * (len(code) - 1) + code


def with_emulation(payload: bytes) -> bytes:
    """Return the payload of a NAL unit with the bytes that keep start codes out of it (ITU-T H.264, 7.4.1)."""
    return _EMULATED.sub(_GUARDED, payload)


def units_of(data: bytes, prefix: int | None) -> list[bytes]:
    """Return the NAL units of a packet without zeros behind them, which start codes of four bytes leave.

    Args:
        data: Packet.
        prefix: Bytes of a length prefix; None for start codes.

    Raises:
        ParameterError: The packet holds too many.
    """
    if prefix is None and data.count(b"\0\0\1") > MOST_UNITS:
        raise ParameterError("a packet holds too many NAL units")
    units = list(itertools.islice(nal_units(data, prefix), MOST_UNITS + 1))
    if len(units) > MOST_UNITS:
        raise ParameterError("a packet holds too many NAL units")
    if prefix is not None:
        return units
    return [unit for piece in units if (unit := piece.rstrip(b"\0"))]


def with_lengths(units: list[bytes]) -> bytes:
    """Return a sample of MP4: NAL units with lengths of four bytes."""
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)
