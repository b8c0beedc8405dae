"""Scenes of made things: balls, gears, pinwheels, and patterns that only move."""

from dataclasses import dataclass, replace

import numpy as np

from pipelines.footage.canvas import (
    Image,
    Painter,
    Plane,
    Scene,
    gradient,
    grid,
    lay,
    noise,
    patch,
    rgb,
    sample,
    shine,
    smooth,
    window,
    wisps,
)


def bouncing_balls(random: np.random.Generator, width: int, height: int) -> Painter:
    """Glossy balls bounce on a studio floor, their shadows with them."""
    _, y_H1 = grid(width, height)
    floor = 0.8 * height
    backdrop = np.repeat(gradient("f4e3cf f0c9a8 e8ad86 d98f6c c57a5b", y_H1 / height), width, axis=2)
    lay(backdrop, backdrop * 0.93 + 0.02, smooth(y_H1, 0.7 * height, 0.72 * height))
    colours = ("d7263d", "1b998b", "f4a300", "2e294e", "3d8bd9", "f46197")
    sizes = random.uniform(0.055, 0.1, len(colours)) * width
    starts, jumps = random.uniform(0, 1, len(colours)), random.uniform(0.35, 0.6, len(colours)) * height
    lanes = np.linspace(0.1, 0.9, len(colours))

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for code, size, start, jump, lane in zip(colours, sizes, starts, jumps, lanes, strict=True):
            hop = (t / (1.9 * np.sqrt(jump / height)) + start) % 1
            lift = 4 * jump * hop * (1 - hop)
            x = (lane + 0.06 * np.sin(1.3 * t + 6 * start)) * width
            part, dx, dy = patch(image, x, floor + 0.5 * size, 1.6 * size)
            far = (dx / (1.2 * size)) ** 2 + (dy / (0.35 * size)) ** 2
            lay(part, rgb("5a2d22"), 0.55 * np.exp(-far * 1.6) * (1 - 0.7 * lift / height))
            _ball(image, x, floor - 0.5 * size - lift, size, rgb(code))
        return image

    return paint


def _ball(image: Image, x: float, y: float, radius: float, colour: Image) -> None:
    part, dx, dy = patch(image, x, y, radius + 1)
    u, v = dx / radius, dy / radius
    out = np.sqrt(np.clip(1 - u * u - v * v, 0, 1))
    light = np.clip(-0.45 * u - 0.6 * v + 0.66 * out, 0, 1)
    shaded = colour * (0.35 + 0.75 * light) + 0.85 * light**24
    lay(part, np.clip(shaded, 0, 1), np.clip((1 - np.sqrt(u * u + v * v)) * radius + 0.5, 0, 1))


@dataclass(frozen=True)
class _Gear:
    """A gear wheel in pixels and radians, its teeth as long as `pitch`."""

    x: float
    y: float
    teeth: int
    pitch: float
    turn: float
    colour: str

    @property
    def radius(self) -> float:
        return self.teeth * self.pitch / 2

    def mate(self, bearing: float, teeth: int, colour: str) -> "_Gear":
        """The wheel that meshes with this one in a direction: there, its gap meets this one's tooth."""
        away = (self.teeth + teeth) * self.pitch / 2
        x, y = self.x + away * np.cos(bearing), self.y + away * np.sin(bearing)
        turn = (bearing * (self.teeth + teeth) + np.pi - self.turn * self.teeth) / teeth + np.pi
        return _Gear(x, y, teeth, self.pitch, turn, colour)

    def after(self, angle: float) -> "_Gear":
        return replace(self, turn=self.turn + angle)

    def casts_shadow_at(self, offset: float) -> "_Gear":
        return replace(self, x=self.x + 0.8 * offset, y=self.y + offset)


def gears(random: np.random.Generator, width: int, height: int) -> Painter:
    """Brass gears turn in mesh before dark felt."""
    backdrop = rgb("17352f") * (0.8 + 0.3 * noise(random, width, height, 6, 2))
    train = [_Gear(0.2 * width, 0.44 * height, 18, height / 27, 0.0, "d9a441")]
    for bearing, teeth, colour in ((0.35, 11, "b8b8c0"), (-0.5, 15, "c96f4a"), (0.75, 8, "e3c27a")):
        train.append(train[-1].mate(bearing, teeth, colour))

    def paint(t: float) -> Image:
        image = backdrop.copy()
        for order, gear in enumerate(train):
            turned = gear.after((-1) ** order * 9 * t / gear.teeth)
            shadow, _, _, cover = _outline(image, turned.casts_shadow_at(0.05 * height))
            lay(shadow, rgb("06120f"), 0.55 * cover)
            metal, distance, bearing, cover = _outline(image, turned)
            sheen = 0.82 + 0.22 * np.cos(2 * bearing - 0.9) + 0.06 * np.cos(distance * 1.6)
            rim = 0.16 * smooth(np.abs(distance - 0.84 * gear.radius), 3, 0.5)
            lay(metal, np.clip(rgb(gear.colour) * sheen - rim, 0, 1), cover)
        return image

    return paint


def _outline(image: Image, gear: _Gear) -> tuple[Image, Plane, Plane, Plane]:
    """The pixels around a gear, their distance and bearing from its hub, and how far it covers them."""
    part, dx, dy = patch(image, gear.x, gear.y, gear.radius + gear.pitch)
    distance, bearing = np.sqrt(dx * dx + dy * dy), np.arctan2(dy, dx)
    edge = gear.radius + 0.5 * gear.pitch * np.clip(1.8 * np.cos(gear.teeth * (bearing - gear.turn)), -1, 1)
    fifth = 2 * np.pi / 5
    hole_at = np.mod(bearing - gear.turn + fifth / 2, fifth) - fifth / 2
    from_hole = np.hypot(distance * np.cos(hole_at) - 0.56 * gear.radius, distance * np.sin(hole_at))
    cover = np.clip(edge - distance, 0, 1) * np.clip(from_hole - 0.2 * gear.radius, 0, 1)
    return part, distance, bearing, cover * np.clip(distance - 0.09 * gear.radius, 0, 1)


def pinwheels(random: np.random.Generator, width: int, height: int) -> Painter:
    """Paper pinwheels spin on a meadow under passing clouds."""
    x_1W, y_H1 = grid(width, height)
    backdrop = np.repeat(gradient("3f9be0 86c5f0 d8eefb", y_H1 / (0.8 * height)), width, axis=2)
    clouds = wisps(random, 2 * width, height)
    blades = noise(random, 2 * width, 1, 5, 2)[0]
    meadow = 0.8 * height + 0.05 * height * noise(random, width, 1, width, 2)
    wheels = [
        (0.12, 0.42, 0.10),
        (0.3, 0.56, 0.075),
        (0.46, 0.3, 0.125),
        (0.64, 0.52, 0.085),
        (0.8, 0.34, 0.11),
        (0.93, 0.58, 0.07),
    ]
    pairs = (
        ("e63946", "ffd6d9"),
        ("ffb703", "fff0c2"),
        ("7b2cbf", "dcc2ff"),
        ("2a9d8f", "c9f2ea"),
        ("fb6f92", "ffe5ec"),
        ("1d4ed8", "c7d9ff"),
    )
    spins = random.uniform(2.0, 4.5, len(wheels))

    def paint(t: float) -> Image:
        image = backdrop.copy()
        lay(image, rgb("ffffff"), 0.9 * smooth(window(clouds, 18 * t, 0, width, height), 0.48, 0.8))
        for (x, y, size), pair, spin in zip(wheels, pairs, spins, strict=True):
            radius = size * max(width, height)
            lean = 0.008 * np.sin(1.7 * t + 20 * x) * width
            image[:, int(y * height) :, int(x * width) - 1 : int(x * width) + 1] = rgb("f4efe6") * 0.9
            _pinwheel(image, x * width + lean, y * height, radius, spin * (t + 0.25 * np.sin(1.3 * t)), pair)
        sway = (x_1W + 3 * np.sin(2 * t + x_1W * 0.05)).astype(np.int32)
        grass = meadow - 0.07 * height * blades.take(sway, mode="wrap")
        lay(
            image,
            gradient("8ccf5b 4c9a3f 2c6e35", (y_H1 - 0.72 * height) / (0.28 * height)),
            np.clip(y_H1 - grass, 0, 1),
        )
        return image

    return paint


def _pinwheel(image: Image, x: float, y: float, radius: float, turn: float, colours: tuple[str, str]) -> None:
    part, dx, dy = patch(image, x, y, radius + 1)
    distance = np.sqrt(dx * dx + dy * dy)
    sector = np.mod((np.arctan2(dy, dx) - turn) / (2 * np.pi) * 6, 1)
    edge = radius * (1 - 0.62 * sector)
    fold = smooth(sector, 0.3, 0.36)
    first, second = (rgb(code) for code in colours)
    lay(part, (first + fold * (second - first)) * (1 - 0.2 * sector), np.clip(edge - distance, 0, 1))
    lay(part, rgb("fff8e7"), np.clip(0.12 * radius - distance, 0, 1))


def kaleidoscope(colours: str, mirrors: int = 8) -> Scene:
    """A coloured pattern, folded by mirrors, drifts and turns."""

    def scene(random: np.random.Generator, width: int, height: int) -> Painter:
        x_1W, y_H1 = grid(width, height)
        dx, dy = x_1W - width / 2, y_H1 - height / 2
        distance, bearing = np.sqrt(dx * dx + dy * dy), np.arctan2(dy, dx)
        wedge = np.abs(np.mod(bearing, 2 * np.pi / mirrors) - np.pi / mirrors)
        u, v = distance * np.cos(wedge), distance * np.sin(wedge)
        field = noise(random, 512, 512, 96, 4)
        glass = gradient(colours, np.mod(2.5 * field, 1)) * (0.75 + 0.35 * noise(random, 512, 512, 48, 2))
        shade = 1 - 0.55 * (distance / distance.max()) ** 2

        def paint(t: float) -> Image:
            turn = 0.35 * t
            cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
            zoom = 1 + 0.15 * np.sin(0.8 * t)
            picture = sample(
                glass, zoom * (u * cos - v * sin) + 30 * t + 4000, zoom * (u * sin + v * cos) + 18 * t + 4000
            )
            picture *= shade
            return picture

        return paint

    return scene


def ink(random: np.random.Generator, width: int, height: int) -> Painter:
    """Inks of teal, cream and coral flow through each other."""
    x_1W, y_H1 = grid(width, height)
    warp, field = noise(random, 512, 512, 160, 3), noise(random, 512, 512, 128, 4)
    colours = gradient(
        "0b3954 087e8b bfd7ea fdf0d5 ff9f7a ff5a5f 6b1b4a 0b3954", np.linspace(0, 1, 1024, dtype=np.float32)
    )
    u, v = x_1W + 0 * y_H1 + 4000, y_H1 + 0 * x_1W + 4000

    def paint(t: float) -> Image:
        one = window(warp, 24 * t, 11 * t, width, height)
        two = window(warp, 200 - 17 * t, 90 + 15 * t, width, height)
        flow = sample(field, u + 150 * one + 12 * t, v + 150 * two)
        level = np.mod(1.6 * flow + 0.35 * one + 0.06 * t, 1)
        picture = colours.take((level * 1023).astype(np.int32), axis=1)
        shine(picture, rgb("ffffff"), 0.18 * smooth(np.abs(two - 0.5), 0.06, 0.0))
        return picture

    return paint


def neon_tunnel(random: np.random.Generator, width: int, height: int) -> Painter:
    """A flight through a tunnel of glowing rings and panels."""
    x_1W, y_H1 = grid(width, height)
    dx, dy = x_1W - width / 2, y_H1 - height / 2
    distance = np.sqrt(dx * dx + dy * dy) + 1
    depth, bearing = 0.32 * height / distance, np.arctan2(dy, dx) / (2 * np.pi)
    panels = random.random((64, 16), dtype=np.float32)
    light = smooth(distance, 0.06 * height, 0.5 * height)

    def paint(t: float) -> Image:
        along, around = depth * 4 + 5 * t, np.mod(bearing + 0.05 * t + 0.02 * np.sin(depth + t), 1) * 16
        lit = panels[along.astype(np.int32) % 64, around.astype(np.int32) % 16]
        gap = smooth(np.abs(np.mod(along, 1) - 0.5), 0.5, 0.4) * smooth(
            np.abs(np.mod(around, 1) - 0.5), 0.5, 0.42
        )
        hue = np.mod(0.06 * along + 0.15 * lit, 1)
        picture = gradient("ff2e88 7a2cff 1fb6ff 19f0c4 7a2cff ff2e88", hue)
        picture *= gap * (0.15 + 0.85 * lit**2) * light
        shine(picture, rgb("fff2ff"), 0.9 * smooth(np.mod(along, 8), 0.25, 0.0) * light)
        return picture

    return paint


def colour_bars(random: np.random.Generator, width: int, height: int) -> Painter:
    """The still test card at the head of a tape: nothing moves."""
    bars = [rgb(code) for code in ("c0c0c0", "c0c000", "00c0c0", "00c000", "c000c0", "c00000", "0000c0")]
    card = np.concatenate([np.broadcast_to(bar, (3, height, -(-width // 7))) for bar in bars], axis=2)[
        :, :, :width
    ]
    card = card.astype(np.float32)
    card[:, int(0.75 * height) :] = np.linspace(0.05, 0.9, width, dtype=np.float32)
    card += 0.01 * noise(random, width, height, 8, 1)
    return lambda _: card
