"""Shots that no camera took: patterns, particles, flat animation and screen recordings, each from a seed.

Everything in such a picture may move at once, which differences between frames take for a transition.
"""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from tests.bench.shot_footage import Frames, Shot

Floats = NDArray[np.float32]

_FRAMES = 110


def drawn_shots(count: int, seed: int, size: tuple[int, int]) -> list[Shot]:
    """Drawn shots of (width, height), the same for the same seed; each is a scene of its own."""
    kinds = (_kaleidoscope, _particles, _sprites, _screen, _card)
    found = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        frames = kinds[number % len(kinds)](rng, *size)
        found.append(Shot(f"drawn/{seed}/{number}/{kinds[number % len(kinds)].__name__}", frames))
    return found


def _stacked(pictures: list[Floats]) -> Frames:
    return np.stack([np.clip(each, 0, 255).astype(np.uint8) for each in pictures])


def _colour(rng: np.random.Generator) -> Floats:
    return rng.uniform(0, 255, 3).astype(np.float32)


def _backdrop(rng: np.random.Generator, width: int, height: int) -> Floats:
    """A gradient between two colours, along a random direction."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    turn = rng.uniform(0, 2 * np.pi)
    share = np.cos(turn) * columns / width + np.sin(turn) * rows / height
    share = ((share - share.min()) / (np.ptp(share) + 1e-6))[:, :, None]
    return np.asarray(_colour(rng) * (1 - share) + _colour(rng) * share, np.float32)


def _kaleidoscope(rng: np.random.Generator, width: int, height: int) -> Frames:
    """A blurred texture, folded into sectors that turn and breathe."""
    coarse = rng.uniform(0, 255, (64, 64, 3)).astype(np.float32)
    texture = cv2.resize(coarse[: int(rng.integers(5, 20)), : int(rng.integers(5, 20))], (256, 256))
    sectors, speed, breath = int(rng.integers(2, 9)), rng.uniform(0.01, 0.09), rng.uniform(0, 0.4)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    rows, columns = (rows - height / 2) / height, (columns - width / 2) / height
    away, turn = np.hypot(rows, columns), np.arctan2(rows, columns)
    pictures = []
    for n in range(_FRAMES):
        folded = np.abs((turn + n * speed) % (2 * np.pi / sectors) - np.pi / sectors)
        reach = away * (1 + breath * np.sin(n * speed * 2)) + n * speed * 0.3
        x = (reach * np.cos(folded + n * speed * 0.5) * 200) % 255
        y = (reach * np.sin(folded + n * speed * 0.5) * 200) % 255
        turned = cv2.remap(texture, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)
        pictures.append(np.asarray(turned, np.float32))
    return _stacked(pictures)


def _particles(rng: np.random.Generator, width: int, height: int) -> Frames:
    """Petals, snow or sparks over a gradient."""
    backdrop, count = _backdrop(rng, width, height), int(rng.integers(15, 150))
    colours = rng.uniform(60, 255, (count, 3))
    place = rng.uniform(0, 1, (count, 2))
    speed = rng.normal(0, 0.008, (count, 2)) + rng.normal(0, 0.02, 2)
    sizes = rng.uniform(0.005, rng.uniform(0.01, 0.08), count) * width
    wave = rng.uniform(0, 0.01)
    pictures = []
    for n in range(_FRAMES):
        picture = backdrop.copy()
        moved = (place + n * speed + wave * np.sin(n * 0.2 + place[::-1] * 9)) % 1.2 - 0.1
        for (x, y), size, colour in zip(moved, sizes, colours, strict=True):
            middle = int(x * width), int(y * height)
            cv2.circle(picture, middle, max(1, int(size)), colour.tolist(), -1, cv2.LINE_AA)
        pictures.append(picture)
    return _stacked(pictures)


def _sprites(rng: np.random.Generator, width: int, height: int) -> Frames:
    """Flat figures that jump about on two or three frames each, before layers that scroll."""
    backdrop, hold = _backdrop(rng, width * 3, height), int(rng.integers(1, 4))
    for _ in range(int(rng.integers(3, 25))):
        low = int(rng.integers(width * 3)), int(rng.integers(height))
        high = low[0] + int(rng.integers(3, width // 2)), low[1] + int(rng.integers(3, height // 2))
        cv2.rectangle(backdrop, low, high, _colour(rng).tolist(), -1)
    scroll, figures = rng.choice([0, rng.uniform(-3, 3)]), int(rng.integers(1, 5))
    start, speed = rng.uniform(0, 1, (figures, 2)), rng.normal(0, 0.03, (figures, 2))
    shapes = [_figure(rng, width) for _ in range(figures)]
    poses = rng.uniform(-0.4, 0.4, (figures, _FRAMES))
    pictures = []
    for n in range(_FRAMES):
        n = n // hold * hold
        picture = np.roll(backdrop, int(n * scroll), axis=1)[:, :width].copy()
        for (points, colour), (x, y), pose in zip(shapes, (start + n * speed) % 1, poses[:, n], strict=True):
            turn = np.array([[np.cos(pose), -np.sin(pose)], [np.sin(pose), np.cos(pose)]])
            placed = points @ turn + (x * width, y * height)
            cv2.fillPoly(picture, [placed.astype(np.int32)], colour.tolist(), cv2.LINE_AA)
            cv2.polylines(picture, [placed.astype(np.int32)], True, (0, 0, 0), 1, cv2.LINE_AA)
        pictures.append(picture)
    return _stacked(pictures)


def _figure(rng: np.random.Generator, width: int) -> tuple[NDArray[np.float64], Floats]:
    corners = int(rng.integers(3, 9))
    turns = np.sort(rng.uniform(0, 2 * np.pi, corners))
    reach = rng.uniform(0.05, 0.3, corners) * width
    return np.stack([np.cos(turns) * reach, np.sin(turns) * reach], axis=1), _colour(rng)


def _screen(rng: np.random.Generator, width: int, height: int) -> Frames:
    """A page of text that scrolls, is typed into, and over which small windows open and close."""
    dark = rng.random() < 0.4
    ground, ink = (np.float32(rng.uniform(10, 50)), 220.0) if dark else (np.float32(250), 40.0)
    page = np.full((height * 4, width, 3), ground, np.float32)
    line = int(rng.integers(3, 7)) * height // 72
    for y in range(line, len(page) - line, 2 * line):
        x = int(rng.integers(2, width // 3))
        while x < width - 8 and rng.random() < 0.85:
            word = int(rng.integers(2, 12)) * width // 128
            page[y : y + max(1, line // 2), x : x + word] = ink
            x += word + width // 64
    for _ in range(int(rng.integers(0, 5))):
        y, x = int(rng.integers(len(page) - height // 2)), int(rng.integers(width // 2))
        page[y : y + height // 3, x : x + width // 3] = _colour(rng)
    windows: list[tuple[int, int, Callable[[Floats], None]]] = []
    for _ in range(int(rng.integers(0, 4))):
        opened = int(rng.integers(_FRAMES))
        windows.append((opened, opened + int(rng.integers(5, 60)), _window(rng, width, height)))
    top, speed = 0.0, 0.0
    pictures = []
    for n in range(_FRAMES):
        if rng.random() < 0.06:
            speed = float(rng.choice([0, 0, rng.uniform(-1, 3), rng.uniform(2, height / 3)]))
        top = min(max(0.0, top + speed), len(page) - height)
        picture = page[int(top) : int(top) + height].copy()
        for opened, closed, window in windows:
            if opened <= n < closed:
                window(picture)
        pictures.append(picture)
    return _stacked(pictures)


def _card(rng: np.random.Generator, width: int, height: int) -> Frames:
    """A title on plain ground: a few words that are there, come slowly, or grow."""
    ground = np.full(
        (height, width, 3), _colour(rng) if rng.random() < 0.4 else rng.choice([0, 12, 255]), np.float32
    )
    if rng.random() < 0.3:
        ground = ground * np.float32(0.8) + _backdrop(rng, width, height) * np.float32(0.2)
    ink = np.zeros((height, width), np.uint8)
    for line in range(int(rng.integers(1, 4))):
        words = "".join(rng.choice(list("ABCDEFGHIKLMNOPRSTUVW  "), int(rng.integers(3, 12))))
        place = int(rng.uniform(0.05, 0.5) * width), int((0.3 + 0.2 * line) * height)
        cv2.putText(ink, words, place, cv2.FONT_HERSHEY_SIMPLEX, rng.uniform(0.3, 0.9) * width / 128, 255, 1)
    tone = _colour(rng) if rng.random() < 0.5 else np.full(3, 255 if ground.mean() < 128 else 0, np.float32)
    coming, growth = (
        int(rng.choice([1, 1, float(rng.integers(5, 40))])),
        rng.choice([0, rng.uniform(0, 0.003)]),
    )
    pictures = []
    for n in range(_FRAMES):
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), 0, 1 + growth * n)
        share = cv2.warpAffine(ink, turn, (width, height))[:, :, None] * np.float32(
            min(1, (n + 1) / coming) / 255
        )
        pictures.append(np.asarray(ground + (tone - ground) * share, np.float32))
    return _stacked(pictures)


def _window(rng: np.random.Generator, width: int, height: int) -> Callable[[Floats], None]:
    low = int(rng.integers(width // 2)), int(rng.integers(height // 2))
    high = low[0] + int(rng.integers(8, width // 2)), low[1] + int(rng.integers(6, height // 2))
    colour, bar = _colour(rng).tolist(), _colour(rng).tolist()

    def opened(picture: Floats) -> None:
        cv2.rectangle(picture, low, high, colour, -1)
        cv2.rectangle(picture, low, (high[0], low[1] + max(1, height // 24)), bar, -1)

    return opened
