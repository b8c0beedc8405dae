"""Random numbers for compiled code, with the state held by the caller.

xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016). A draw
takes a few instructions, whereas numpy's generator with one state per thread costs as much as half a move.
"""

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.compiled import compiled

Bits = NDArray[np.uint64]
"""State of the generator: one nonzero number."""
_A, _B, _C, _LOW = np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(11)
_FACTOR = np.uint64(0x2545F4914F6CDD1D)
_SPREAD = 0x9E3779B97F4A7C15  # spreads neighbouring seeds over all bits (Steele, Lea, Flood, 2014)


def seed_bits(seed: int) -> Bits:
    """Return the generator state for a seed."""
    mixed = (int(seed) + 1) * _SPREAD & (2**64 - 1)
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & (2**64 - 1)
    return np.array([(mixed ^ mixed >> 31) or 1], np.uint64)


@compiled
def chance(bits: Bits) -> float:
    """Draw a number uniformly from [0, 1)."""
    state = bits[0]
    state ^= state >> _A
    state ^= state << _B
    state ^= state >> _C
    bits[0] = state
    return float((state * _FACTOR) >> _LOW) * 2.0**-53


@compiled
def below(bits: Bits, count: int) -> int:
    """Draw an integer uniformly from 0 to ``count - 1``."""
    return int(chance(bits) * count)
