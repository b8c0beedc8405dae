"""Compiled loops over samples of pictures."""

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.compiled import compiled

Codes = NDArray[np.uint16]
Bytes = NDArray[np.uint8]


@compiled
def map_picture(
    size: tuple[int, int],
    deep: tuple[Codes, Codes, Codes],
    of_luma: Bytes,
    of_chroma: Bytes,
    mapped: tuple[Bytes, Bytes, Bytes],
) -> bool:
    """Map a 10-bit 4:2:0 picture to 8 bits, and return whether all table entries were filled.

    Args:
        size: Height and width of luma. An odd last row or column of chroma belongs to half a square.
        deep: Lines of Y, Cb and Cr, which may be longer than the picture.
        of_luma: Mapped luma by Cb and Cr without two bits each, and luma.
        of_chroma: Mapped Cb and Cr by Cb and Cr without a bit each, and the mean of luma without three, [entries, 2].
        mapped: Lines of Y, Cb and Cr to write; Cb is 0 where an entry is not filled.
    """
    height, width = size
    y, u, v = deep
    luma, blue, red = mapped
    filled = True
    ten = np.uint32(1023)  # codes of more bits, which are invalid, must not leave the tables
    for row in range((height + 1) // 2):
        top = 2 * row
        bottom = min(top + 1, height - 1)
        for column in range((width + 1) // 2):
            x = 2 * column
            right = min(x + 1, width - 1)
            cb, cr = np.uint32(u[row, column]) & ten, np.uint32(v[row, column]) & ten
            first, second = np.uint32(y[top, x]) & ten, np.uint32(y[top, right]) & ten
            third, fourth = np.uint32(y[bottom, x]) & ten, np.uint32(y[bottom, right]) & ten
            mean = (first + second + third + fourth) >> np.uint32(5)
            table_index = (
                ((cb >> np.uint32(1)) << np.uint32(16)) | ((cr >> np.uint32(1)) << np.uint32(7)) | mean
            )
            filled &= of_chroma[table_index, 0] != 0
            blue[row, column] = of_chroma[table_index, 0]
            red[row, column] = of_chroma[table_index, 1]
            group = ((cb >> np.uint32(2)) << np.uint32(18)) | ((cr >> np.uint32(2)) << np.uint32(10))
            luma[top, x] = of_luma[group | first]
            luma[top, right] = of_luma[group | second]
            luma[bottom, x] = of_luma[group | third]
            luma[bottom, right] = of_luma[group | fourth]
    return filled


@compiled
def round_samples(size: tuple[int, int], samples: Codes, bits: int, rounded: Bytes) -> None:
    """Round samples of 8 and some more bits to 8, in lines that may be longer than the picture."""
    height, width = size
    half = np.uint32(1 << (bits - 1))
    for row in range(height):
        for column in range(width):
            value = (np.uint32(samples[row, column]) + half) >> np.uint32(bits)
            rounded[row, column] = value if value < 255 else 255
