"""Clips with a known movement of the camera, and with known marks: a virtual camera over real footage.

The camera looks at a part of a film whose own camera stands still, so that things move in it by themselves, or at one
picture of a film. Its path is known, and so is what a viewer calls it.
"""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tests.media import CORPUS

WIDTH, HEIGHT, FPS, SECONDS = 320, 180, 25, 3.0
SOURCE_WIDTH = 960
MOVES = ("pan", "tilt", "zoom", "roll", "shake")
KINDS = ((), *((move,) for move in MOVES), ("pan", "tilt"), ("pan", "zoom"), ("pan", "shake"))
"""Movements of one clip."""

TUNED = {"highway_bridge.avi": True, "bottles_vfr.mp4": True, "misty_valley_hdr10.mp4": False,
         "bbb_opening.mp4": False, "desk_lamp_rotated.mov": False}  # fmt: skip
UNSEEN = {"mouse_arena.mp4": True, "parking_lane_cars.mp4": True, "popeye_roc.mkv": False,
          "plush_gopher_vertical.mp4": False, "chaplin_policeman.mp4": False, "bunny_square.webm": False}  # fmt: skip
"""Films by name, and whether they are played or one picture of them is shown."""

Picture = NDArray[np.uint8]


class Shot(NamedTuple):
    """A clip to render.

    Attributes:
        film: name of its footage.
        plays: whether the film plays; else one picture is shown.
        moves: movements of the camera.
        seed: of the path.
        mark: kind of the mark on it, "" without one.
    """

    film: str
    plays: bool
    moves: tuple[str, ...]
    seed: int
    mark: str = ""


def shots(films: dict[str, bool], rounds: int) -> Iterator[Shot]:
    """Every kind of movement over every film, ``rounds`` times."""
    for number, (seed, (film, plays), moves) in enumerate(
        itertools.product(range(rounds), films.items(), KINDS)
    ):
        yield Shot(film, plays, moves, 1000 * seed + number)


def rendered(shot: Shot) -> Iterator[Picture]:
    """The pictures of a clip, uint8 [HEIGHT, WIDTH, 3]."""
    rng = np.random.default_rng(shot.seed)
    count = round(FPS * SECONDS)
    seconds = np.arange(count) / FPS
    middle = seconds - seconds.mean()

    def speed(low: float, high: float) -> float:
        return float(rng.uniform(low, high) * rng.choice((-1, 1)))

    right, down, grown, turned = (np.zeros(count) for _ in range(4))
    if "pan" in shot.moves:
        right += speed(0.05, 0.25) * middle
    if "tilt" in shot.moves:
        down += speed(0.05, 0.25) * middle
    if "zoom" in shot.moves:
        grown += speed(0.05, 0.25) * middle
    if "roll" in shot.moves:
        turned += np.radians(speed(3, 15)) * middle
    if "shake" in shot.moves:
        for path, most in ((right, 1.0), (down, WIDTH / HEIGHT), (turned, 0.3)):
            sway = sum(
                np.sin(2 * np.pi * (hertz * seconds + rng.random())) / hertz
                for hertz in rng.uniform(1.5, 5, 4)
            )
            path += sway * most * rng.uniform(0.03, 0.15) / np.sqrt(np.gradient(sway, seconds).var() * 2)
    pictures = _source(shot.film, shot.plays, shot.seed, count)
    mark = _mark(shot.mark, rng) if shot.mark else None
    view = rng.uniform(0.34, 0.42) * SOURCE_WIDTH / WIDTH  # pixels of the source for one of the clip
    for number in range(count):
        source = pictures[number % len(pictures)]
        scale = view * np.exp(-grown[number])
        cos, sin = scale * np.cos(turned[number]), scale * np.sin(turned[number])
        x = source.width / 2 + right[number] * WIDTH * view
        y = source.height / 2 + down[number] * HEIGHT * view
        matrix = (
            cos,
            sin,
            x - cos * WIDTH / 2 - sin * HEIGHT / 2,
            -sin,
            cos,
            y + sin * WIDTH / 2 - cos * HEIGHT / 2,
        )
        image = source.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
        if mark is not None:
            image.paste(mark, (0, 0), mark)
        yield np.asarray(image)


def _source(film: str, plays: bool, seed: int, count: int) -> list[Image.Image]:
    frames = _frames(film)
    if not plays:
        return [frames[seed % len(frames)]]
    first = seed % max(1, len(frames) - count)
    return frames[first : first + count]


@cache
def _frames(film: str) -> list[Image.Image]:
    """Some frames of a film in a row, at `SOURCE_WIDTH`, without black borders; of pictures, some from all over it."""
    every = {**TUNED, **UNSEEN}[film]
    found = []
    with av.open(str(CORPUS / "originals" / film)) as container:
        stream = container.streams.video[0]
        total = round(float((container.duration or 0) / 1e6 * (stream.average_rate or 25)))
        for number, frame in enumerate(container.decode(stream)):
            if (every and number >= 100) or (
                not every and number >= total * 0.45 and number % max(1, total // 12) == 0
            ):
                image = frame.to_image()
                if film.startswith("chaplin"):
                    image = image.crop(
                        (round(image.width * 0.12), 0, round(image.width * 0.88), image.height)
                    )
                if image.height > image.width:
                    image = image.crop((0, image.height // 4, image.width, 3 * image.height // 4))
                size = (SOURCE_WIDTH, max(400, round(SOURCE_WIDTH * image.height / image.width)))
                found.append(image.resize(size, Image.Resampling.BICUBIC))
            if len(found) >= (200 if every else 5):
                break
    assert found, film
    return found


def _mark(kind: str, rng: np.random.Generator) -> Image.Image:
    """A semi-transparent mark in a corner: the name of a channel, or a drawn logo."""
    layer = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    fill = (255, 255, 255, int(rng.uniform(90, 200)))
    size = float(rng.uniform(0.09, 0.16)) * HEIGHT
    x = float(rng.choice((0.06, 0.78))) * WIDTH
    y = float(rng.choice((0.07, 0.8))) * HEIGHT
    if kind == "name":
        draw.text((x, y), "stream", font=ImageFont.load_default(round(size)), fill=fill)
    else:
        draw.ellipse((x, y, x + 1.6 * size, y + 1.6 * size), outline=fill, width=2)
        draw.polygon(
            [
                (x + 0.5 * size, y + 0.4 * size),
                (x + 0.5 * size, y + 1.2 * size),
                (x + 1.2 * size, y + 0.8 * size),
            ],
            fill=fill,
        )
    return layer
