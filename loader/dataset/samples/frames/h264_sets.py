"""Parts of a sequence parameter set of H.264 (ITU-T H.264) that readers skip."""

from __future__ import annotations

from reelweave.loader.dataset.samples.frames.bits import Bits


def skip_scaling(bits: Bits, lists: int) -> None:
    """Skip scaling lists (7.3.2.1.1.1)."""
    for index in range(lists):
        if not bits.take():
            continue
        last = following = 8
        for _ in range(16 if index < 6 else 64):
            if following:
                following = (last + bits.signed()) % 256
            last = following or last


def skip_order(bits: Bits) -> None:
    """Skip how the order of showing is coded (7.3.2.1.1)."""
    kind = bits.unsigned()
    if kind == 0:
        bits.unsigned()
    elif kind == 1:
        bits.take()
        bits.signed()
        bits.signed()
        for _ in range(min(bits.unsigned(), 255)):
            bits.signed()
