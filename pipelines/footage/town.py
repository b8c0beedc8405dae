"""Scenes of a town after dark: the skyline, a road, lights out of focus."""

import numpy as np

from pipelines.footage.canvas import (
    Image,
    Painter,
    Scene,
    disc,
    glow,
    gradient,
    grid,
    lay,
    noise,
    patch,
    rgb,
    shine,
    smooth,
    starfield,
    window,
    wisps,
)


def skyline(sky: str, tower: str, moon_at: tuple[float, float], speed: float = 1.0) -> Scene:
    """Three rows of towers with lit windows glide past behind water.

    Args:
        sky: Colours from the zenith to the horizon.
        tower: Colour of the farthest towers; nearer rows are darker.
        moon_at: Place of the moon, as shares of width and height.
        speed: Of the camera's pan.
    """

    def scene(random: np.random.Generator, width: int, height: int) -> Painter:
        _, y_H1 = grid(width, height)
        shore = int(0.78 * height)
        backdrop = np.repeat(gradient(sky, y_H1[:shore] / shore), width, axis=2)
        stars, _ = starfield(random, width, shore, width * shore // 500)
        shine(backdrop, rgb("ffffff"), stars * (1 - y_H1[:shore] / shore) * 0.8)
        moon = (moon_at[0] * width, moon_at[1] * height)
        glow(backdrop, *moon, 0.16 * width, rgb("ffe9c9"), 0.35)
        disc(backdrop, *moon, 0.03 * width, rgb("fff6e3"))
        clouds = wisps(random, 2 * width, shore)
        rows = [
            _towers(random, 2 * width, shore, rgb(tower) * shade, tall, broad)
            for shade, tall, broad in ((1.0, 0.62, 18), (0.55, 0.5, 26), (0.25, 0.36, 38))
        ]
        mirror_rows = (shore - 1 - 2 * np.arange(height - shore)).clip(0).astype(np.intp)

        def paint(t: float) -> Image:
            image = backdrop.copy()
            cover = window(clouds, 7 * t, 0, width, shore)
            lay(image, backdrop[:, -1:] * 0.9, smooth(cover, 0.5, 0.9) * 0.5)
            for layer, row in enumerate(rows):
                part = window(row, speed * t * (7 + 15 * layer), 0, width, shore)
                image *= 1 - part[3]
                image += part[:3]
            depth = np.arange(height - shore)
            ripple = (1 + 0.12 * depth) * np.sin(depth * 1.1 - 4 * t) + 1.5 * np.sin(depth * 0.37 + 2.3 * t)
            columns = np.clip(np.arange(width)[None, :] + ripple.astype(np.intp)[:, None], 0, width - 1)
            water = image[:, mirror_rows[:, None], columns] * 0.6
            return np.concatenate([image, water], axis=1)

        return paint

    return scene


def _towers(
    random: np.random.Generator, width: int, height: int, colour: Image, tall: float, broad: int
) -> Image:
    """A row of towers that tiles sideways: (4, height, width), colour times cover, then cover."""
    row = np.zeros((4, height, width), np.float32)
    _, y_H1 = grid(width, height)
    lamps = [rgb(code)[:, :, 0] for code in ("ffd98a", "ffb85c", "fff1cf", "9fd3ff")]
    left = 0
    while left < width:
        right = min(width, left + int(random.uniform(0.6, 1.4) * broad))
        top = height - int(height * tall * random.uniform(0.35, 1.0))
        row[:3, top:, left:right] = colour * (1 + 0.25 * (1 - (y_H1[top:] - top) / height))
        row[3, top:, left:right] = 1
        if random.random() < 0.35:
            mast = (left + right) // 2
            row[:3, max(0, top - height // 14) : top, mast] = colour[:, :, 0]
            row[3, max(0, top - height // 14) : top, mast] = 1
        step = 4 if broad < 25 else 5
        lamp = lamps[random.integers(len(lamps))]
        for x in range(left + 2, right - 2, step):
            for y in range(top + 4, height - 2, step + 1):
                if random.random() < 0.42:
                    row[:3, y : y + 3, x : x + 2] = (lamp * random.uniform(0.35, 1))[:, :, None]
        left = right + int(random.integers(0, 3))
    return row


def night_road(random: np.random.Generator, width: int, height: int) -> Painter:
    """Headlights come and tail lights go on a road between street lamps."""
    x_1W, y_H1 = grid(width, height)
    horizon = int(0.44 * height)
    middle = 0.5 * width
    backdrop = np.repeat(gradient("120c2b 3a1f5c 8a3b6b f08a5d", y_H1 / horizon), width, axis=2)
    towers = _towers(random, width, horizon, rgb("1d1436"), 0.5, 22)
    backdrop[:, :horizon] = backdrop[:, :horizon] * (1 - towers[3]) + towers[:3]
    near = (y_H1[horizon:] - horizon + 1) / (height - horizon)
    tarmac = rgb("15131f") + 0.08 * near + 0.03 * noise(random, width, height - horizon, 12, 3)
    verge = smooth(np.abs(x_1W - middle), 0.62 * width * near - 2, 0.62 * width * near + 4)
    backdrop[:, horizon:] = tarmac + verge * (rgb("0b0a14") - tarmac)
    dash_x = np.abs(x_1W - middle) < 0.008 * width * near + 0.4
    edges = np.abs(np.abs(x_1W - middle) - 0.58 * width * near) < 0.006 * width * near + 0.3
    cars = [
        (lane, place, pace)
        for lane, pace in ((-0.36, -17), (-0.18, -22), (0.18, 7), (0.36, 4.5))
        for place in np.sort(random.uniform(0, 40, 9))
    ]

    def paint(t: float) -> Image:
        image = backdrop.copy()
        road = image[:, horizon:]
        dashes = (np.mod(1.2 / near + 4.5 * t, 1.6) < 0.7) * dash_x
        lay(road, rgb("d8cfae"), np.asarray(0.8 * dashes + 0.5 * edges, np.float32).clip(0, 1))
        for number in range(9, -1, -1):
            away = 1 + (number * 4 - 9 * t) % 40
            for side in (-1, 1):
                x, foot = middle + side * 0.72 * width / away, horizon + (height - horizon) / away
                top = foot - 0.95 * height / away
                _post(image, x, top, foot, 0.012 * width / away)
                glow(
                    image, x - side * 0.06 * width / away, top, 0.045 * width / away + 0.8, rgb("ffc774"), 1.0
                )
                glow(image, x - side * 0.06 * width / away, top, 0.2 * width / away, rgb("ff9a4d"), 0.3)
        for lane, place, pace in sorted(cars, key=lambda car: -((car[1] + car[2] * t) % 40)):
            away = 1.1 + (place + pace * t) % 40
            y = horizon + 0.86 * (height - horizon) / away
            lamp = rgb("fff3d0") if pace < 0 else rgb("ff2a2a")
            for side in (-1, 1):
                x = middle + (lane * 1.2 + 0.05 * side) * width / away
                glow(image, x, y, 0.012 * width / away + 0.7, lamp, 1.0)
                glow(image, x, y, 0.05 * width / away, lamp, 0.4)
                glow(image, x, y + 0.12 * height / away, 0.03 * width / away, lamp, 0.16)
        return image

    return paint


def _post(image: Image, x: float, top: float, foot: float, thick: float) -> None:
    left, right = sorted(int(np.clip(x + side * thick / 2, 0, image.shape[2])) for side in (-1, 1))
    image[:, max(0, int(top)) : max(0, int(foot)), left : max(right, left + 1)] = rgb("0c0916")


def city_bokeh(random: np.random.Generator, width: int, height: int) -> Painter:
    """Town lights far out of focus drift and breathe behind a rainy window."""
    _, y_H1 = grid(width, height)
    backdrop = np.repeat(gradient("0a0f24 1a1c3f 2c1a3a", y_H1 / height), width, axis=2)
    lamps = [rgb(code) for code in ("ff8a3c", "ffc14d", "ff4468", "3aa8ff", "3ff0b4", "ffd9a0")]
    discs = random.uniform((0.02, 0, 0.2, 0), (0.085, 1, 0.95, 6), (40, 4))
    beads = random.uniform(0, 1, (90, 3))

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for size, x, y, phase in discs[discs[:, 0].argsort()[::-1]]:
            radius = size * width
            at = ((x + (0.25 - 2 * size) * 0.4 * t) % 1.2 - 0.1) * width
            part, dx, dy = patch(image, at, (y + 0.01 * np.sin(t + phase)) * height, radius + 1)
            distance = np.sqrt(dx * dx + dy * dy)
            rim = 0.7 + 0.5 * smooth(distance, 0.7 * radius, radius)
            light = 0.62 * (0.75 + 0.25 * np.sin(2.1 * t + phase)) * np.clip(radius - distance, 0, 1) * rim
            shine(part, lamps[int(phase)], light)
        for x, y, size in beads:
            down = (y + 0.12 * t * size**3) % 1
            disc(image, x * width, down * height, 0.8 + 1.6 * size, rgb("dfe9ff"), 0.22)
        return image

    return paint
