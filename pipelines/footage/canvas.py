"""What every scene is painted with: colours, noise, masks and light on planar float images."""

from collections.abc import Callable
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.floating[Any]]
"""(height, width), or anything that broadcasts to it; float32 wherever speed matters."""

Image = NDArray[np.floating[Any]]
"""(3, height, width), 0..1. Planar, because numpy is fast only over a long last axis."""

Painter = Callable[[float], Image]
"""Seconds since the shot began -> the frame. Holds no state: any moment may be asked for, in any order."""

Scene = Callable[[np.random.Generator, int, int], Painter]
"""Random numbers, width and height in pixels -> the painter of one shot."""


def rgb(code: str) -> Image:
    """The colour "rrggbb" as a (3, 1, 1) image."""
    return np.frombuffer(bytes.fromhex(code), np.uint8).astype(np.float32).reshape(3, 1, 1) / 255


def gradient(codes: str, positions: Plane) -> Image:
    """Colours "rrggbb rrggbb ..." spread evenly over positions 0..1, which may have any shape."""
    stops = np.concatenate([rgb(code)[:, 0] for code in codes.split()], axis=1)
    at = np.linspace(0, 1, stops.shape[1])
    return np.stack([np.interp(positions, at, stop) for stop in stops]).astype(np.float32)


def mix(low: str, high: str, share: Plane | float) -> Image:
    """Two colours mixed, `share` of the second."""
    return np.asarray(rgb(low) + share * (rgb(high) - rgb(low)))


def smooth(value: Plane, low: Plane | float, high: Plane | float) -> Plane:
    """0 at low, 1 at high, an S-curve between; low may lie above high."""
    x = np.clip((value - low) / (high - low), 0, 1)
    return np.asarray(x * x * (3 - 2 * x), np.float32)


def grid(width: int, height: int) -> tuple[Plane, Plane]:
    """Pixel coordinates x of shape (1, width) and y of shape (height, 1)."""
    return np.arange(width, dtype=np.float32)[None, :], np.arange(height, dtype=np.float32)[:, None]


def noise(random: np.random.Generator, width: int, height: int, cell: int, octaves: int = 4) -> Plane:
    """Value noise that tiles in both directions, stretched to 0..1.

    Args:
        random: Draws the lattices.
        width: Pixels.
        height: Pixels; 1 gives a profile.
        cell: Pixels between the lattice points of the coarsest octave; each further octave halves it.
        octaves: How many lattices are added up, each with half the weight of the one before.
    """
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        lattice = random.random(
            (max(1, height * 2**octave // cell), max(1, width * 2**octave // cell)), dtype=np.float32
        )
        total += _stretch(_stretch(lattice, height).T, width).T / 2**octave
    return np.asarray((total - total.min()) / (total.max() - total.min()))


def wisps(random: np.random.Generator, width: int, height: int) -> Plane:
    """Noise drawn out sideways, as high clouds are; it tiles."""
    return noise(random, width, 3 * height, width // 5, 6)[::3]


def _stretch(lattice: Plane, size: int) -> Plane:
    """Smoothly interpolate the first axis of a periodic lattice to `size` rows."""
    at = np.arange(size, dtype=np.float32) * (len(lattice) / size)
    low = at.astype(np.intp)
    part = smooth(at - low, 0, 1)[:, None]
    return lattice[low] * (1 - part) + lattice[(low + 1) % len(lattice)] * part


def window(texture: Plane, x: float, y: float, width: int, height: int) -> Plane:
    """The part of a tiling texture (..., rows, columns) whose corner is at x, y, fractions included."""
    column, row = int(np.floor(x)), int(np.floor(y))
    columns = np.arange(column, column + width + 1) % texture.shape[-1]
    rows = np.arange(row, row + height + 1) % texture.shape[-2]
    part = texture.take(rows, axis=-2).take(columns, axis=-1)
    part = part[..., :-1, :] + np.float32(y - row) * (part[..., 1:, :] - part[..., :-1, :])
    return np.asarray(part[..., :-1] + np.float32(x - column) * (part[..., 1:] - part[..., :-1]))


def sample(texture: Plane, x: Plane, y: Plane) -> Plane:
    """The nearest texels of a tiling texture (..., rows, columns) at coordinates of any one shape."""
    rows, columns = texture.shape[-2:]
    flat = y.astype(np.int32) % rows * columns + x.astype(np.int32) % columns
    return np.asarray(texture.reshape(*texture.shape[:-2], -1).take(flat, axis=-1))


def lay(image: Image, colour: Image, mask: Plane | float) -> None:
    """Lay a colour (or an image) over the image where the mask is 1; 0 leaves it as it is."""
    image += mask * (colour - image)


def shine(image: Image, colour: Image, light: Plane) -> None:
    """Add light without ever leaving 0..1 (the "screen" mode of picture editors)."""
    image += (1 - image) * np.clip(colour * light, 0, 1)


def glow(image: Image, x: float, y: float, radius: float, colour: Image, strength: float = 1.0) -> None:
    """Shine a soft round light of three radii around x, y; only the pixels it reaches are touched."""
    part, dx, dy = patch(image, x, y, 3 * radius)
    shine(part, colour, strength * np.exp(-(dx * dx + dy * dy) / np.float32(radius * radius)))


def disc(image: Image, x: float, y: float, radius: float, colour: Image, opacity: float = 1.0) -> None:
    """Lay a disc with a soft edge of one pixel."""
    part, dx, dy = patch(image, x, y, radius + 1)
    lay(part, colour, opacity * np.clip(radius + 0.5 - np.sqrt(dx * dx + dy * dy), 0, 1))


def patch(image: Image, x: float, y: float, reach: float) -> tuple[Image, Plane, Plane]:
    """A view of the pixels within `reach` of x, y (maybe none), and their offsets dx, dy from it."""
    height, width = image.shape[-2:]
    left, right = (min(max(floor(x + side), 0), width) for side in (-reach, reach + 1))
    top, bottom = (min(max(floor(y + side), 0), height) for side in (-reach, reach + 1))
    dx, dy = grid(right - left, bottom - top)
    return image[..., top:bottom, left:right], dx + np.float32(left - x), dy + np.float32(top - y)


def starfield(random: np.random.Generator, width: int, height: int, count: int) -> tuple[Plane, Plane]:
    """Two tiling planes of stars, (brightness, phase of twinkling 0..2 pi)."""
    stars = np.zeros((height, width), np.float32)
    rows, columns = random.integers(0, height, count), random.integers(0, width, count)
    power = random.random(count, dtype=np.float32) ** 5
    for row, column, share in ((0, 0, 1.0), (0, 1, 0.35), (1, 0, 0.35), (0, -1, 0.35), (-1, 0, 0.35)):
        stars[(rows + row) % height, (columns + column) % width] += share * (0.25 + 0.75 * power)
    return np.clip(stars, 0, 1), noise(random, width, height, 16, 1) * np.float32(2 * np.pi)
