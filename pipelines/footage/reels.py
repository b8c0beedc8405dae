"""The reels of the demo: what each file shows, how it is cut, and what is awkward about it."""

from dataclasses import dataclass
from typing import Literal

from reelweave.pipelines.footage.scenes import (
    ALGAE,
    BALLOON,
    BLACK,
    BLUR,
    CARTOON,
    CLOUDS,
    COLONY,
    EMBERS,
    GLASS,
    INK,
    LAVA,
    LENS,
    PETALS,
    PLANET,
    RAIN,
    RIPPLES,
    SEAHORSES,
    SPIRES,
    STARS,
    TEST_CARD,
    TUNNEL,
    WHEEL,
    ZOOM,
)


@dataclass(frozen=True)
class Shot:
    """A scene on show for some seconds; the frames in which the shot before dissolves into it come on top."""

    scene: str
    seconds: float
    mixed: int = 0


@dataclass(frozen=True)
class Reel:
    """One file of raw footage.

    Attributes:
        name: ends in .mp4 (H.264) or .webm (VP9).
        caption: empty for none.
        width: pixels, as a viewer sees it.
        height: pixels, as a viewer sees it.
        fps: frames per second.
        shots: shots in order; a fade through black is a dissolve into `BLACK` and one out of it.
        caption_in: place of the caption.
        uneven: frames are missing, as in films of phones (variable frame rate).
        tone: a soft chord as an AAC track.
        turned: stored lying on its side, with a display matrix that sets it upright.
        cut_off: the last bytes are missing, and with them the index.
    """

    name: str
    caption: str
    width: int
    height: int
    fps: int
    shots: tuple[Shot, ...]
    caption_in: Literal["txt", "json", "container"] = "txt"
    uneven: bool = False
    tone: bool = False
    turned: bool = False
    cut_off: bool = False


_COLONY = Shot(COLONY, 3.0)

REELS = (
    Reel(
        "clouds_and_fractals.mp4",
        "Clouds drift over a blue sky, the camera dives into the edge of the Mandelbrot set, and a spotted "
        "planet turns.",
        480, 270, 24,
        (Shot(CLOUDS, 3.0), Shot(ZOOM, 2.6, mixed=16), Shot(PLANET, 3.2)),
    ),
    Reel(
        "fire_and_rain.mp4",
        "Embers glow and drift, rain falls on dark glass, and a colony of cells spreads.",
        480, 270, 25,
        (Shot(EMBERS, 2.8), Shot(RAIN, 2.6), _COLONY),
        tone=True,
    ),
    Reel(
        "broadcast.mp4",
        "A test pattern with a running clock, the same seen through a round lens, and a wheel of colours.",
        426, 240, 30,
        (Shot(CARTOON, 2.8), Shot(LENS, 2.6), Shot(WHEEL, 2.4)),
        caption_in="json",
    ),
    Reel(
        "kaleidoscope.webm",
        "A kaleidoscope folds coloured glass, then petals of a fractal, then rings of light spread.",
        384, 216, 30,
        (Shot(GLASS, 2.6), Shot(PETALS, 2.4), Shot(RIPPLES, 2.6)),
    ),
    Reel(
        "balloon_portrait.mp4",
        "A striped balloon turns, then algae spread in green water.",
        216, 384, 24,
        (Shot(BALLOON, 3.2), Shot(BLACK, 0.25, mixed=12), Shot(ALGAE, 3.0, mixed=12)),
        caption_in="container",
    ),
    Reel(
        "deep_space.webm",
        "Stars drift by, a tunnel of light opens, and the camera dives into a fractal.",
        432, 240, 24,
        (Shot(STARS, 3.0), Shot(BLACK, 0.25, mixed=12), Shot(TUNNEL, 2.8, mixed=12), Shot(SEAHORSES, 2.6)),
    ),
    Reel(
        "moving_patterns.mp4",
        "The spires of a fractal grow, rings of light spread, and clouds drift over a blue sky.",
        400, 224, 24,
        (Shot(SPIRES, 2.6), Shot(RIPPLES, 2.6), Shot(CLOUDS, 2.4, mixed=16)),
        uneven=True,
    ),
    Reel(
        "phone_upright.mp4",
        "",
        180, 320, 30,
        (Shot(LAVA, 2.8), Shot(GLASS, 2.2)),
        turned=True,
    ),
    Reel(
        "odds_and_ends.mp4",
        "A test card, a colony of cells, coloured inks, and lights out of focus.",
        480, 270, 25,
        # The test card stands still, the colony is in another file too, and the last shot is blurred.
        (Shot(TEST_CARD, 2.0), _COLONY, Shot(INK, 2.6), Shot(BLUR, 2.4)),
    ),
    Reel(
        "unfinished_recording.mp4",
        "Rain falls on dark glass.",
        384, 216, 24,
        (Shot(RAIN, 2.0), Shot(CARTOON, 2.0)),
        cut_off=True,
    ),
)  # fmt: skip
