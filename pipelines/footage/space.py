"""Scenes in space: a ringed planet, a nebula, a leap through the stars."""

import numpy as np

from pipelines.footage.canvas import (
    Image,
    Painter,
    glow,
    gradient,
    grid,
    lay,
    noise,
    rgb,
    sample,
    shine,
    smooth,
    starfield,
    window,
)


def ringed_planet(random: np.random.Generator, width: int, height: int) -> Painter:
    """A banded planet turns inside its rings while the stars drift."""
    x_1W, y_H1 = grid(width, height)
    stars, phase = starfield(random, 2 * width, height, width * height // 90)
    radius = 0.3 * min(width, height)
    cx, cy = 0.56 * width, 0.5 * height
    dx, dy = (x_1W - cx) / radius, (y_H1 - cy) / radius
    tilt = 0.35
    u, v = dx * np.cos(tilt) + dy * np.sin(tilt), dy * np.cos(tilt) - dx * np.sin(tilt)
    out = np.sqrt(np.clip(1 - u * u - v * v, 0, 1))
    ball = np.clip((1 - np.sqrt(u * u + v * v)) * radius + 0.5, 0, 1)
    light = np.clip(-0.6 * dx - 0.35 * dy + 0.7 * out, 0, 1)
    longitude, latitude = (
        np.arctan2(u, out) * (512 / (2 * np.pi)),
        (np.arcsin(np.clip(v, -1, 1)) / np.pi + 0.5) * 255,
    )
    swirl = noise(random, 512, 256, 64, 5)
    rows = np.arange(256, dtype=np.float32)[:, None]
    bands = np.mod(0.5 + 0.5 * np.sin(rows * 0.13 + 2.2 * swirl) + 0.3 * swirl, 1)
    surface = gradient("6b3a2a b5653a e8b878 f6e3c0 d99a5b 8f4a2f", bands)
    squash = np.sqrt(u * u + (v / 0.28) ** 2)
    ring = (
        smooth(squash, 1.35, 1.4)
        * smooth(squash, 2.25, 2.15)
        * (0.55 + 0.45 * np.sin(squash * 38) * np.sin(squash * 13))
    )
    ring = ring * (1 - ball * (v < 0)) * 0.85
    rim = np.exp(-(((np.sqrt(u * u + v * v) - 1) / 0.06) ** 2)) * np.clip(-0.6 * dx - 0.35 * dy + 0.3, 0, 1)
    ring_colour = gradient("8c7a66 d9c2a0 f3e6cf b39b7d", (squash - 1.35) / 0.9)

    def paint(t: float) -> Image:
        image = np.repeat(gradient("05060f 0a0d24 10122e", y_H1 / height), width, axis=2)
        bright = window(stars, 10 * t, 0, width, height)
        shine(image, rgb("dfe8ff"), bright * (0.8 + 0.2 * np.sin(4 * t + phase[:, :width])))
        planet = sample(surface, longitude + 26 * t + 4096, latitude) * (0.06 + 1.05 * light)
        lay(image, np.clip(planet, 0, 1), ball)
        shine(image, rgb("ffd9a8"), 0.7 * rim)
        lay(image, ring_colour, ring)
        orbit = 0.9 * t + 0.6
        mx, my = (
            cx + 2.1 * radius * np.cos(orbit),
            cy + 0.75 * radius * np.sin(orbit) - 0.3 * radius * np.cos(orbit),
        )
        glow(image, mx, my, 0.06 * radius, rgb("e8e4dc"), 1.0)
        return image

    return paint


def nebula(random: np.random.Generator, width: int, height: int) -> Painter:
    """Clouds of glowing gas slide over each other in front of a field of stars."""
    stars, phase = starfield(random, 2 * width, 2 * height, width * height // 40)
    gas = [noise(random, 2 * width, 2 * height, width // 2, 6) for _ in range(3)]
    colours = [rgb(code) for code in ("d6336c", "3b5bdb", "12b8a6")]
    suns = [(random.uniform(0, width), random.uniform(0, height), random.uniform(1.2, 3)) for _ in range(9)]

    def paint(t: float) -> Image:
        image = np.repeat(np.repeat(rgb("07060f"), height, axis=1), width, axis=2)
        for order, (cloud, colour) in enumerate(zip(gas, colours, strict=True)):
            drift = (9 + 7 * order) * t
            density = window(cloud, drift, 0.4 * drift + 40 * order, width, height)
            shine(image, colour, 1.15 * smooth(density, 0.38, 0.95))
        dust = window(gas[0], 200 + 30 * t, 120 + 9 * t, width, height)
        image *= 1 - 0.75 * smooth(dust, 0.5, 0.8)
        twinkle = 0.75 + 0.25 * np.sin(4 * t + phase[:height, :width])
        shine(image, rgb("eaf0ff"), window(stars, 5 * t, 2 * t, width, height) * twinkle)
        for x, y, size in suns:
            glow(image, (x - 14 * t) % width, (y - 5 * t) % height, size, rgb("fff4e0"), 1.0)
            glow(image, (x - 14 * t) % width, (y - 5 * t) % height, 5 * size, rgb("ffb0c8"), 0.35)
        return image

    return paint


def star_leap(random: np.random.Generator, width: int, height: int) -> Painter:
    """Stars stretch into streaks of light as the ship leaps ahead."""
    x_1W, y_H1 = grid(width, height)
    dx, dy = x_1W - width / 2, y_H1 - height / 2
    distance = np.sqrt(dx * dx + dy * dy) + 1
    lane_at = (np.arctan2(dy, dx) / (2 * np.pi) + 0.5) * 420
    lane, within = lane_at.astype(np.int32) % 420, np.mod(lane_at, 1)
    start, tone = random.random((2, 420), dtype=np.float32)
    start, pace = start[lane], (0.5 + 0.8 * random.random(420, dtype=np.float32))[lane]
    tint = gradient("6fa8ff d6e4ff ffffff a98bff 5ce1ff", tone[lane])
    reach = np.log(distance / distance.max() + 0.02)
    thin = 1 - np.abs(2 * within - 1)
    core = np.exp(-((distance / (0.16 * height)) ** 2))

    def paint(t: float) -> Image:
        phase = np.mod(start + 0.35 * reach - pace * t, 1)
        streak = smooth(phase, 0.35, 0.0) * thin * np.clip(distance / (0.35 * height), 0, 1)
        image: Image = tint * streak + rgb("03040f")
        shine(image, rgb("cfe2ff"), core * (0.85 + 0.2 * np.sin(9 * t)))
        return image

    return paint
