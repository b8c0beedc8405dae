"""Scenes of water: the open sea, a reef, rain on a pond."""

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
    sample,
    shine,
    smooth,
    starfield,
    window,
    wisps,
)


def sea(
    sky: str, deep: str, crest: str, lamp: str, lamp_at: tuple[float, float], starry: bool = False
) -> Scene:
    """Waves roll under a sun or moon whose light glitters on them.

    Args:
        sky: Colours from the zenith to the horizon.
        deep: Colour of the troughs.
        crest: Colour of the crests.
        lamp: Colour of the sun or moon.
        lamp_at: Its place, as shares of width and height.
        starry: Whether stars twinkle above.
    """

    def scene(random: np.random.Generator, width: int, height: int) -> Painter:
        x_1W, y_H1 = grid(width, height)
        top = int(0.46 * height)
        backdrop = np.repeat(gradient(sky, y_H1 / top), width, axis=2)
        lamp_x, lamp_y = lamp_at[0] * width, lamp_at[1] * height
        stars, phase = starfield(random, width, top, width * top // 260)
        clouds = wisps(random, 2 * width, top)
        cloud_rows = smooth(y_H1[:top], 0, 0.8 * top) * 0.6
        swell, chop = noise(random, 512, 512, 64, 3), noise(random, 512, 512, 24, 3)
        near = (y_H1[top:] - top + 1) / (height - top)
        u, v = (x_1W - width / 2) * 0.9 / near + 9000, 70 / near
        fade = smooth(near, 0, 0.25)
        path = np.exp(-(((x_1W - lamp_x) / (width * (0.03 + 0.16 * near))) ** 2))
        far = backdrop[:, top - 1 : top]

        def paint(t: float) -> Image:
            image = backdrop.copy()
            if starry:
                shine(image[:, :top], rgb("e8f0ff"), stars * (0.7 + 0.3 * np.sin(3 * t + phase)))
            glow(image, lamp_x, lamp_y, 0.3 * width, rgb(lamp), 0.4)
            glow(image, lamp_x, lamp_y, 0.08 * width, rgb(lamp), 0.6)
            disc(image, lamp_x, lamp_y, 0.04 * width, rgb(lamp) * 0.4 + 0.6)
            cover = smooth(window(clouds, 9 * t, 0, width, top), 0.5, 0.9) * cloud_rows
            lay(image[:, :top], far * 0.8 + 0.1, cover)
            wide = sample(swell, u + 16 * t, v + 34 * t)
            fine = sample(chop, u * 0.8 - 22 * t, v * 1.6 + 48 * t)
            wave = 0.6 * wide + 0.4 * fine
            water = rgb(deep) + smooth(wave, 0.25, 0.8) * (rgb(crest) - rgb(deep))
            lay(water, far, (1 - fade) * 0.75)
            shine(water, rgb("ffffff"), 0.5 * smooth(wave, 0.72, 0.85) * fade)
            shine(water, rgb(lamp), path * (0.22 + smooth(fine, 0.5, 0.75)) * 0.9)
            image[:, top:] = water
            return image

        return paint

    return scene


def reef(random: np.random.Generator, width: int, height: int) -> Painter:
    """A shoal crosses a reef while light shafts sway and bubbles rise."""
    x_1W, y_H1 = grid(width, height)
    backdrop = np.repeat(gradient("35c4d7 1594b8 0b6690 083f68", y_H1 / height), width, axis=2)
    shafts = noise(random, 512, 1, 24, 3)[0]
    angle = (x_1W - 0.35 * width) / (y_H1 + 0.6 * height) * 150 + 256
    dim = 0.55 * (1 - y_H1 / (1.05 * height))
    floor = int(0.78 * height)
    bed_line = floor + 0.05 * height * noise(random, width, 1, width // 3, 3)
    bed = np.clip(y_H1[floor:] - bed_line + 0.5, 0, 1)
    net = noise(random, 512, 512, 32, 2)
    near = (y_H1[floor:] - floor + 12) / (height - floor)
    u, v = (x_1W - width / 2) / near * 0.6 + 4000, 60 / near
    weed_x = random.uniform(0, width, 26)
    weed_h = random.uniform(0.1, 0.3, 26) * height
    fish = [
        (random.uniform(0.06, 0.68), random.uniform(-0.3, 1.0), size, speed, body, fin)
        for size, speed, body, fin, count in (
            (0.022, 0.10, "9fd8e0", "5fa9bd", 14),
            (0.045, 0.16, "f6a623", "d94f30", 7),
            (0.08, 0.12, "f2e94e", "3d3a8c", 3),
        )
        for _ in range(count)
    ]
    bubbles = random.uniform(0, 1, (30, 3))

    def paint(t: float) -> Image:
        image = backdrop.copy()
        one = shafts.take((angle + 14 * t).astype(np.int32), mode="wrap")
        two = shafts.take((angle * 0.7 - 10 * t).astype(np.int32), mode="wrap")
        shine(image, rgb("d8fff4"), smooth(one * two, 0.12, 0.6) * dim)
        lines = sample(net, u + 14 * t, v + 9 * t) + sample(net, u * 1.1 - 12 * t, v * 1.1 - 8 * t)
        caustic = (1 - np.clip(np.abs(lines - 1) * 4, 0, 1)) ** 2
        lay(image[:, floor:], rgb("7fae9a") + 0.4 * caustic, bed * 0.85)
        for x, tall in zip(weed_x, weed_h, strict=True):
            _weed(image, x, 0.9 * height, tall, t)
        for y, x, size, speed, body, fin in fish:
            at = (x + speed * t + 0.3) % 1.5 - 0.25
            bob = 0.012 * np.sin(2.2 * t + 40 * x)
            _fish(image, at * width, (y + bob) * height, size * width, t * 9 + 50 * x, (body, fin))
        for x, y, size in bubbles:
            up = (y - 0.22 * t * (0.6 + size)) % 1
            disc(
                image,
                (x + 0.01 * np.sin(4 * t + 30 * y)) * width,
                up * height,
                1 + 2.4 * size,
                rgb("e6ffff"),
                0.5,
            )
        return image

    return paint


def _weed(image: Image, x: float, y: float, tall: float, t: float) -> None:
    part, dx, dy = patch(image, x, y - tall / 2, tall / 2)
    up = np.clip(0.5 - dy / tall, 0, 1)
    bend = 0.16 * tall * up * np.sin(1.7 * t + 5 * up + x)
    lay(part, rgb("12564f") + 0.12 * up, np.clip(2.6 * (1 - 0.7 * up) - np.abs(dx - bend), 0, 1))


def _fish(image: Image, x: float, y: float, size: float, phase: float, colours: tuple[str, str]) -> None:
    """A fish that swims to the right: `size` is half its length."""
    part, dx, dy = patch(image, x, y, 1.5 * size)
    u, v = dx / size, dy / size
    v = v - 0.08 * np.sin(phase - 3 * u) * (0.6 - 0.4 * u)
    tail = np.clip((0.06 + 0.55 * (-0.7 - u) - np.abs(v)) * size + 0.5, 0, 1) * (u > -1.35) * (u < -0.68)
    body = np.clip((1 - np.sqrt((u / 0.95) ** 2 + (v / 0.42) ** 2)) * 0.45 * size + 0.5, 0, 1)
    lay(part, rgb(colours[1]), tail)
    lay(part, rgb(colours[0]) * (0.95 - 0.5 * v) + 0.1 * (v < -0.05), body)
    lay(part, rgb(colours[1]), 0.8 * body * smooth(np.abs(u - 0.15), 0.14, 0.08))
    disc(image, x + 0.6 * size, y - 0.09 * size, 0.075 * size, rgb("101018"))


def pond(random: np.random.Generator, width: int, height: int) -> Painter:
    """Rings of raindrops spread among lily pads on a green pond, koi passing below."""
    _, y_H1 = grid(width, height)
    murk = noise(random, width, height, width // 3, 5)
    backdrop = gradient("0d3b38 1a5c50 4d8a6a", np.clip(0.75 * murk + 0.35 * (1 - y_H1 / height), 0, 1))
    pads = random.uniform((0, 0.05, 0.06, 0), (1, 0.95, 0.14, 6), (9, 4))
    drops = random.uniform(0, 1, (26, 3))
    koi = [
        (0.25, 0.1, 0.15, 0.7, "ff7a3c"),
        (0.6, 0.55, 0.12, 0.9, "f7f0e8"),
        (0.42, 0.8, 0.1, 1.1, "ffb03a"),
    ]
    short = min(width, height)

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for y, x, size, speed, body in koi:
            at = (x + 0.13 * speed * t) % 1.4 - 0.2
            _fish(
                image,
                at * width,
                (y + 0.03 * np.sin(t + 9 * x)) * height,
                size * short,
                5 * t + 9 * x,
                (body, "d8452e"),
            )
        lay(image, rgb("1a5c50"), 0.25)
        tilt = np.zeros((1, height, width), np.float32)
        for x, y, start in drops:
            age = (t * 0.55 + start) % 1
            _ring(tilt, x * width, y * height, age, 0.34 * short)
        image += 0.5 * tilt
        for x, y, radius, turn in pads:
            _pad(image, x * width, y * height, radius * short, turn + 0.12 * np.sin(t + turn))
        return image.clip(0, 1)

    return paint


def _ring(tilt: Image, x: float, y: float, age: float, reach: float) -> None:
    """Add the slope of one spreading ring, seen in light from the upper left."""
    part, dx, dy = patch(tilt, x, y, reach * age + 14)
    distance = np.sqrt(dx * dx + dy * dy) + 1e-3
    behind = distance - reach * age
    wave = np.sin(behind * 0.75) * np.exp(-((behind / 7) ** 2)) * (1 - age) ** 1.5
    part += wave * (-dx - dy) / distance


def _pad(image: Image, x: float, y: float, radius: float, turn: float) -> None:
    part, dx, dy = patch(image, x, y, radius + 1)
    distance = np.sqrt(dx * dx + dy * dy)
    angle = np.arctan2(dy, dx) - turn
    notch = smooth(np.abs(np.mod(angle, 2 * np.pi) - np.pi), np.pi - 0.16, np.pi - 0.22)
    veins = 0.05 * np.cos(angle * 12)
    lay(part, rgb("5fa043") + veins - 0.14 * distance / radius, np.clip(radius - distance, 0, 1) * notch)
