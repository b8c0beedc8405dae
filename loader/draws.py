"""Random numbers that are the same on every platform and numpy version.

They are the raw 64-bit words of Philox4x64-10 (Salmon et al., 2011), with the key (seed, number of the epoch or step)
and one counter block per purpose. The words are part of that algorithm's definition; ``Generator.shuffle`` gives no
such promise.
"""

import numpy as np
from numpy.typing import NDArray


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
