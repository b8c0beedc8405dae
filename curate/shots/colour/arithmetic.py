"""Sums and sorting for compiled loops, in orders that vector instructions can keep.

The orders of sums are those that numpy has on x86: the networks learnt from such numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.base.compiled import compiled

Floats = NDArray[np.float32]

_BLOCK = 128  # maximum values that are summed without halving


@compiled
def sum_of(values: Floats) -> Any:
    """Return the sum of values [n], whose number is a multiple of 8 however often it is halved down to 128.

    Eight partial sums are kept in each block, and blocks are added in pairs.
    """
    blocks = 1
    while len(values) // blocks > _BLOCK:
        blocks *= 2
    size = len(values) // blocks
    sums = np.empty(blocks, np.float32)
    partial = np.empty(8, np.float32)
    for block in range(blocks):
        place = block * size
        end = place + size
        for lane in range(8):
            partial[lane] = values[place + lane]
        place += 8
        while place + 8 <= end:
            for lane in range(8):
                partial[lane] += values[place + lane]
            place += 8
        total = ((partial[0] + partial[1]) + (partial[2] + partial[3])) + (
            (partial[4] + partial[5]) + (partial[6] + partial[7])
        )
        while place < end:
            total += values[place]
            place += 1
        sums[block] = total
    while blocks > 1:
        blocks //= 2
        for block in range(blocks):
            sums[block] = sums[2 * block] + sums[2 * block + 1]
    return sums[0]


@compiled
def square_sum(values: Floats) -> Any:
    """Return the sum of the squares of values [n]; n is a multiple of 4. Four partial sums are kept."""
    partial = np.zeros(4, np.float32)
    place = 0
    while place + 16 <= len(values):
        for part in range(3, -1, -1):
            for lane in range(4):
                value = values[place + 4 * part + lane]
                partial[lane] += value * value
        place += 16
    while place < len(values):
        for lane in range(4):
            value = values[place + lane]
            partial[lane] += value * value
        place += 4
    return (partial[0] + partial[1]) + (partial[2] + partial[3])


@compiled
def sort_columns(values: Floats) -> None:
    """Sort each column of values [rows, columns], upwards, by Batcher's odd-even merges."""
    count, columns = values.shape
    width = 1
    while width < count:
        step = width
        while step > 0:
            for first in range(step % width, count - step, 2 * step):
                for low in range(first, min(first + step, count - step)):
                    if low // (2 * width) == (low + step) // (2 * width):
                        for column in range(columns):
                            a, b = values[low, column], values[low + step, column]
                            values[low, column] = a if a < b else b
                            values[low + step, column] = b if a < b else a
            step //= 2
        width *= 2
