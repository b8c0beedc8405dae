"""Scenes of land and air: ridges, dunes, balloons, a sea of clouds, aurora, a snowy wood."""

import numpy as np

from pipelines.footage.canvas import (
    Image,
    Painter,
    Plane,
    Scene,
    disc,
    glow,
    gradient,
    grid,
    lay,
    mix,
    noise,
    patch,
    rgb,
    sample,
    shine,
    smooth,
    starfield,
    window,
    wisps,
)


def ridges(
    sky: str, far: str, near: str, sun: str, sun_at: tuple[float, float], cloud: str, speed: float = 1.0
) -> Scene:
    """Five ranges of hills in morning haze, passing at their own speeds under a low sun.

    Args:
        sky: Colours from the zenith to the horizon.
        far: Colour of the farthest range and of the mist.
        near: Colour of the nearest range, which carries firs.
        sun: Colour of the sun and its glow.
        sun_at: Its place, as shares of width and height.
        cloud: Colour of the clouds.
        speed: Of the camera's pan; negative pans to the left.
    """

    def scene(random: np.random.Generator, width: int, height: int) -> Painter:
        _, y_H1 = grid(width, height)
        backdrop = np.repeat(gradient(sky, y_H1 / (0.62 * height)), width, axis=2)
        glow(backdrop, sun_at[0] * width, sun_at[1] * height, 0.35 * width, rgb(sun), 0.55)
        glow(backdrop, sun_at[0] * width, sun_at[1] * height, 0.1 * width, rgb(sun), 0.6)
        disc(backdrop, sun_at[0] * width, sun_at[1] * height, 0.035 * width, rgb(sun) * 0.3 + 0.7)
        clouds = wisps(random, 2 * width, height)
        cloud_rows = (1 - smooth(y_H1, 0.1 * height, 0.6 * height)) * 0.75
        texture = noise(random, 2 * width, height, 24, 5)
        crests = []
        for layer in range(5):
            crest = noise(random, 4 * width, 1, int(width * (0.75 - 0.12 * layer)), 7)[0]
            crest = height * (0.53 + 0.11 * layer) - crest * height * (0.28 - 0.03 * layer)
            crests.append(crest if layer < 4 else crest - _firs(random, 4 * width, 0.11 * height, width // 2))

        def paint(t: float) -> Image:
            image = backdrop.copy()
            cover = window(clouds, 8 * speed * t, 0, width, height)
            lay(image, rgb(cloud), smooth(cover, 0.45, 0.8) * cloud_rows)
            for layer, crest in enumerate(crests):
                nearness = layer / 4
                pan = speed * t * (4 + 70 * nearness**2)
                line_1W = window(crest[None], pan, 0, width, 1)
                top = int(np.clip(line_1W.min() - 1, 0, height - 1))
                below = y_H1[top:] - line_1W
                grain = window(texture, pan + 97 * layer, top, width, height - top)
                haze = np.clip(below / (0.3 * height), 0, 1) * (0.75 * (1 - nearness))
                paint_3HW = (rgb(far) + nearness * (rgb(near) - rgb(far))) * (0.84 + 0.3 * grain)
                lay(paint_3HW, rgb(far), haze)
                lay(image[:, top:], paint_3HW, np.clip(below + 0.5, 0, 1))
            return image

        return paint

    return scene


def _firs(random: np.random.Generator, width: int, tallest: float, count: int) -> Plane:
    """How far a row of firs rises above the ground, per column."""
    line = np.zeros(width, np.float32)
    for at in random.integers(0, width, count):
        size = tallest * random.uniform(0.4, 1)
        columns = np.arange(int(-size / 4), int(size / 4) + 1)
        boughs = size - 4 * np.abs(columns) + 0.1 * size * (np.abs(columns) % 3 - 1)
        line_at = (at + columns) % width
        line[line_at] = np.maximum(line[line_at], boughs)
    return line


def balloons(land: Scene) -> Scene:
    """Striped hot-air balloons that rise and drift before another scene."""
    liveries = (("e4572e", "ffd9a0"), ("2e86ab", "f5f1e3"), ("f2b134", "a8322a"), ("6a4c93", "f7c5cc"))

    def scene(random: np.random.Generator, width: int, height: int) -> Painter:
        behind = land(random, width, height)
        sizes = (0.13, 0.085, 0.06, 0.1)
        places = ((0.22, 0.4), (0.52, 0.3), (0.7, 0.48), (0.84, 0.22))
        phases = random.uniform(0, 2 * np.pi, len(sizes))

        def paint(t: float) -> Image:
            image = behind(t)
            for size, (x, y), colours, phase in zip(sizes, places, liveries, phases, strict=True):
                drift = 0.012 * np.sin(0.9 * t + phase) + 0.12 * size * t
                _balloon(
                    image,
                    (x + drift) * width,
                    (y - 0.2 * size * t) * height,
                    size * height,
                    colours,
                    phase + t / 2,
                )
            return image

        return paint

    return scene


def _balloon(image: Image, x: float, y: float, radius: float, colours: tuple[str, str], turn: float) -> None:
    part, dx, dy = patch(image, x, y, 2 * radius)
    u, v = dx / radius, dy / radius
    waist = np.where(v < 0.35, np.sqrt(np.clip(1 - v * v, 0, 1)), 0.937 - 0.84 * (v - 0.35))
    inside = np.clip((waist - np.abs(u)) * radius + 0.5, 0, 1) * (np.abs(v - 0.11) < 1.11)
    around = np.arcsin(np.clip(u / np.maximum(waist, 0.05), -1, 1)) + turn
    stripe = smooth(np.sin(around * 6), -0.2, 0.2)
    light = 1.02 - 0.3 * (u + 0.45) ** 2 - 0.12 * np.clip(v, 0, 1)
    first, second = (rgb(code) for code in colours)
    lay(part, (first + stripe * (second - first)) * light, inside)
    lay(part, rgb("3b2a20"), np.asarray((np.abs(u) < 0.15) & (v > 1.42) & (v < 1.65), np.float32))
    lay(part, rgb("3b2a20"), 0.7 * ((np.abs(np.abs(u) - 0.14) < 0.5 / radius) & (v > 1.2) & (v < 1.45)))


def dunes(random: np.random.Generator, width: int, height: int) -> Painter:
    """Desert dunes in late light: every crest parts a lit face from one in shadow."""
    x_1W, y_H1 = grid(width, height)
    backdrop = np.repeat(gradient("2f6f9f 7fb2c4 f3d9a4 f7b267", y_H1 / (0.5 * height)), width, axis=2)
    glow(backdrop, 0.16 * width, 0.32 * height, 0.22 * width, rgb("fff0c2"), 0.7)
    crests = []
    for layer in range(4):
        crest = noise(random, 4 * width, 1, int(0.6 * width), 2)[0]
        crests.append(height * (0.47 + 0.16 * layer) - crest * height * (0.24 + 0.03 * layer))
    grain = noise(random, 2 * width, height, 60, 4)

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for layer, crest in enumerate(crests):
            pan = t * (9 + 22 * layer)
            line_1W = window(crest[None], pan, 0, width, 1)
            top = int(np.clip(line_1W.min() - 1, 0, height - 1))
            below = y_H1[top:] - line_1W
            # The edge between light and shadow runs down the face at a slant and wavers.
            waver = window(grain, pan, top, width, height - top)
            at = (x_1W + pan - 1.1 * np.clip(below, 0, None) + 30 * waver).astype(np.int32)
            slope = np.gradient(crest).astype(np.float32) * (width / height)
            lit = smooth(slope.take(at, mode="wrap"), 0.25, -0.2)
            ripples = 0.06 * np.sin(below * 0.9 + 14 * waver) * lit
            shadow, light = rgb("8a3f2b") + 0.05 * (3 - layer), rgb("eda355") + 0.04 * (3 - layer)
            colour = (shadow + lit * (light - shadow)) * (0.93 + ripples + 0.14 * waver)
            lay(image[:, top:], colour, np.clip(below + 0.5, 0, 1))
        return image

    return paint


def clouds_from_above(random: np.random.Generator, width: int, height: int) -> Painter:
    """A flight over a sea of clouds towards the setting sun."""
    x_1W, y_H1 = grid(width, height)
    horizon = 0.4 * height
    backdrop = np.repeat(gradient("24345e 6d5a8c e07a5f ffd29d", y_H1 / horizon), width, axis=2)
    sun = (0.62 * width, 0.93 * horizon)
    glow(backdrop, *sun, 0.3 * width, rgb("ffb56b"), 0.8)
    disc(backdrop, *sun, 0.045 * width, rgb("fff3d6"))
    texture = noise(random, 512, 512, 96, 6)
    rows = y_H1[int(horizon) :]
    near = (rows - horizon + 2) / (height - horizon)
    u, v = (x_1W - width / 2) * 0.55 / near, 90 / near
    fade = smooth(near, 0.0, 0.3)
    distant = smooth(near, 0.55, 0.02)

    def paint(t: float) -> Image:
        image = backdrop.copy()
        floor = image[:, int(horizon) :]
        tops = sample(texture, u + 4000, v + 60 * t)
        sunward = sample(texture, u + 4004, v + 60 * t + 7)
        puff = smooth(tops, 0.25, 0.8)
        relief = np.clip(0.5 + 3.2 * (tops - sunward), 0, 1)
        colour = mix("4b4a78", "f0c4b0", puff)
        lay(colour, rgb("ffd9a8"), 0.75 * relief * puff)
        lay(colour, rgb("ffc890"), distant * 0.8)
        lay(floor, colour, 0.15 + 0.85 * np.maximum(fade, 0.5))
        glow(image, *sun, 0.12 * width, rgb("ffcf8a"), 0.5)
        return image

    return paint


def aurora(random: np.random.Generator, width: int, height: int) -> Painter:
    """Northern lights over firs, mirrored in a still lake."""
    x_1W, y_H1 = grid(width, height)
    shore = int(0.74 * height)
    stars, phase = starfield(random, width, shore, width * shore // 220)
    backdrop = np.repeat(gradient("070b1f 0b1c38 12395a", y_H1[:shore] / shore), width, axis=2)
    firs = np.maximum(_firs(random, width, 0.2 * height, width // 6), 0.03 * height)
    wood = np.clip(y_H1[:shore] - (shore - firs[None]) + 0.5, 0, 1)
    wander = noise(random, 1024, 1, 256, 3)[0]
    rays = noise(random, 1024, 1, 24, 4)[0]
    curtains = (
        (0.5, 0.3, 1.0, "4dffb0", "8a5cff"),
        (0.36, 0.24, 0.7, "2ee6d6", "c04dff"),
        (0.62, 0.2, 0.6, "7dff7a", "3a8dff"),
    )
    mirror_rows = (shore - 1 - 1.5 * np.arange(height - shore)).clip(0).astype(np.intp)

    def paint(t: float) -> Image:
        image = backdrop.copy()
        shine(image, rgb("e8f0ff"), stars * (0.75 + 0.25 * np.sin(3 * t + phase)))
        for order, (low, tall, power, foot, head) in enumerate(curtains):
            at = x_1W * (1 + 0.25 * order) + 300 * order
            line = shore * (
                low + 0.3 * (wander.take((at * 0.7 + 26 * t).astype(np.int32), mode="wrap") - 0.5)
            )
            ray = rays.take((at * 1.3 - 34 * t).astype(np.int32), mode="wrap") ** 1.6
            up = (line - y_H1[:shore]) / (tall * shore * (0.6 + 0.8 * ray))
            light = power * (0.25 + ray) * np.exp(-np.clip(up, 0, None) * 1.8) * smooth(up, -0.14, 0.05)
            shine(image, mix(foot, head, np.clip(up * 0.8, 0, 1)), light)
        lay(image, rgb("03060d"), wood)
        ripple = (2.2 * np.sin(np.arange(height - shore) * 0.9 + 3 * t)).astype(np.intp)
        columns = np.clip(np.arange(width)[None, :] + ripple[:, None], 0, width - 1)
        lake = 0.62 * image[:, mirror_rows[:, None], columns] + 0.02
        return np.concatenate([image, lake], axis=1)

    return paint


def snowy_wood(random: np.random.Generator, width: int, height: int) -> Painter:
    """Snow falls on a fir wood at blue hour; a lit hut stands among the trees."""
    _, y_H1 = grid(width, height)
    backdrop = np.repeat(gradient("6f87a8 a9b9cc dfd9d8 f3e3d3", y_H1 / (0.6 * height)), width, axis=2)
    ground = noise(random, 2 * width, 1, width, 3)[0]
    woods = []
    for layer in range(3):
        firs = _firs(random, 2 * width, height * (0.14 + 0.06 * layer), width // (6 + 9 * layer))
        woods.append(height * (0.62 + 0.09 * layer) + 0.05 * height * ground - firs)
    flakes = [
        _flakes(random, width, height, count, radius) for count, radius in ((260, 0.8), (110, 1.4), (36, 2.6))
    ]

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for layer, line in enumerate(woods):
            pan = (3 + 7 * layer) * t
            line_1W = window(line[None], pan, 0, width, 1)
            colour = mix("8fa3b8", "1f3a44", layer / 2)
            lay(image, colour, np.clip(y_H1 - line_1W + 0.5, 0, 1))
            floor_1W = height * (0.632 + 0.09 * layer) + 0.05 * height * window(
                ground[None], pan, 0, width, 1
            )
            snow = mix("dfe6ee", "f6f4f1", layer / 2)
            lay(
                image,
                snow - 0.1 * smooth(y_H1, 0.7 * height, 1.1 * height),
                np.clip((y_H1 - floor_1W) / 3, 0, 1),
            )
            if layer == 1:
                _hut(image, 0.58 * width - pan, 0.77 * height, 0.13 * min(width, height))
        for flake, fall, sway in zip(flakes, (38, 62, 105), (4, 8, 14), strict=True):
            lay(
                image, rgb("ffffff"), window(flake, sway * np.sin(t + fall) - 6 * t, -fall * t, width, height)
            )
        return image

    return paint


def _hut(image: Image, x: float, y: float, size: float) -> None:
    part, dx, dy = patch(image, x, y, 1.5 * size)
    u, v = dx / size, dy / size
    lay(part, rgb("4a3026"), np.asarray((np.abs(u) < 0.7) & (v > -0.45) & (v < 0.35), np.float32))
    roof = np.clip((v + 1.05 - 0.68 * np.abs(u)) * size, 0, 1) * np.clip((-0.35 - v) * size, 0, 1)
    lay(part, rgb("eef1f5"), roof * (np.abs(u) < 0.95))
    lay(
        part,
        rgb("ffd27a"),
        np.asarray((np.abs(np.abs(u) - 0.33) < 0.15) & (np.abs(v + 0.08) < 0.15), np.float32),
    )
    glow(image, x, y - 0.08 * size, 0.5 * size, rgb("ffb347"), 0.45)


def _flakes(random: np.random.Generator, width: int, height: int, count: int, radius: float) -> Plane:
    """Soft flakes that tile in both directions."""
    tile = np.zeros((1, height, width), np.float32)
    for x, y in random.uniform(4 * radius, (width - 4 * radius, height - 4 * radius), (count, 2)):
        glow(tile, x, y, radius, np.ones(1, np.float32), 0.9)
    return np.squeeze(tile, 0)
