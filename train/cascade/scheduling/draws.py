"""Random numbers of compiled code, from a state of its caller's.

xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016): a few
instructions where numpy's generator, with a state of its own for each thread, takes as long as a move's other half.
"""

import numpy as np
from numpy.typing import NDArray

from train.cascade.scheduling.compiled import compiled

Bits = NDArray[np.uint64]
"""The state: one number, not 0."""
_A, _B, _C, _LOW = np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(11)
_FACTOR = np.uint64(0x2545F4914F6CDD1D)
_SPREAD = 0x9E3779B97F4A7C15  # of neighbouring seeds, over all bits (Steele, Lea, Flood, 2014)


def seeded(seed: int) -> Bits:
    """The state that belongs to a seed."""
    mixed = (int(seed) + 1) * _SPREAD & (2**64 - 1)
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & (2**64 - 1)
    return np.array([(mixed ^ mixed >> 31) or 1], np.uint64)


@compiled
def chance(bits: Bits) -> float:
    """Evenly from 0 to 1, without 1."""
    state = bits[0]
    state ^= state >> _A
    state ^= state << _B
    state ^= state >> _C
    bits[0] = state
    return float((state * _FACTOR) >> _LOW) * 2.0**-53


@compiled
def below(bits: Bits, count: int) -> int:
    """Evenly from 0 to ``count``, without that."""
    return int(chance(bits) * count)
