"""Random numbers that are the same on every platform and numpy version.

They are the raw 64-bit words of Philox4x64-10 (Salmon et al., 2011), with the key (seed, number of the epoch or step)
and one counter block per purpose. The words are part of that algorithm's definition; ``Generator.shuffle`` gives no
such promise.
"""

import numpy as np
from numpy.typing import NDArray

from loader.base.arrays import Numbers, number_type
from loader.base.columns import parts

_FEWEST_RANDOM_BITS = 20
_AT_ONCE = 1 << 16  # keys that stay in the processor's cache


def words(seed: int, number: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """``count`` words, uint64, each value as likely.

    Args:
        seed: of the whole run, 0 to 2^64 - 1.
        number: of the epoch or step.
        purpose: what they are for, so that two uses get different ones.
        count: how many.
    """
    philox = np.random.Philox(
        key=np.array([seed, number], np.uint64), counter=np.array([0, 0, 0, purpose], np.uint64)
    )
    return np.asarray(philox.random_raw(count), np.uint64)


def uniform(seed: int, number: int, purpose: int, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1), from the upper 53 bits of `words`."""
    return np.asarray((words(seed, number, purpose, count) >> np.uint64(11)) * 2.0**-53)


def shuffled(seed: int, number: int, purpose: int, count: int, group_N: Numbers | None = None) -> Numbers:
    """The numbers 0 to ``count`` - 1 in random order; by group and in random order within each, where groups are given.

    What is sorted are 64-bit keys of group, random bits and number, as values: an argsort takes twice the memory and
    several times as long. No two keys are equal, so that every sort gives the same.

    Numbers of a group with equal random bits lie by number xor a random mask, so that either of any two comes first
    equally often, however few these bits are. Only how several ties lie is not independent: of 100 million numbers
    in 20 groups of one size 0.1 % are in a tie, 2.3 % where one group has nearly all.

    Args:
        seed: as of `words`.
        number: as of `words`.
        purpose: as of `words`.
        count: how many.
        group_N: integers [N] from 0.
    """
    keys_N = words(seed, number, purpose, count)
    number_bits = max(count - 1, 0).bit_length()
    group_bits = 0 if group_N is None else int(group_N.max(initial=0)).bit_length()
    if group_N is not None and 64 - number_bits - group_bits < _FEWEST_RANDOM_BITS:
        return np.lexsort((keys_N, group_N)).astype(number_type(count))
    low = np.uint64((1 << number_bits) - 1)
    mask = keys_N[:1] & low  # bits that no key keeps
    for part in parts(count, _AT_ONCE):
        key_n = keys_N[part]
        key_n >>= np.uint64(group_bits)
        key_n &= ~low
        key_n |= np.arange(part.start, part.start + len(key_n), dtype=np.uint64) ^ mask
        if group_N is not None:
            key_n |= group_N[part].astype(np.uint64) << np.uint64(64 - group_bits)
    keys_N.sort()
    order_N = np.empty(count, number_type(count))
    for part in parts(count, _AT_ONCE):
        order_N[part] = (keys_N[part] & low) ^ mask
    return order_N
