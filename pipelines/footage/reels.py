"""The reels of the demo: what each file shows, how it is cut, and what is awkward about it."""

from dataclasses import dataclass
from typing import Literal

from pipelines.footage.edit import Join, Shot, Timeline, lay_out
from pipelines.footage.land import aurora, balloons, clouds_from_above, dunes, ridges, snowy_wood
from pipelines.footage.playthings import (
    bouncing_balls,
    colour_bars,
    gears,
    ink,
    kaleidoscope,
    neon_tunnel,
    pinwheels,
)
from pipelines.footage.space import nebula, ringed_planet, star_leap
from pipelines.footage.town import city_bokeh, night_road, skyline
from pipelines.footage.water import pond, reef, sea


@dataclass(frozen=True)
class Reel:
    """One file. Width and height are those a viewer sees; `name` ends in .mp4 (H.264) or .webm (VP9)."""

    name: str
    caption: str
    width: int
    height: int
    fps: int
    shots: tuple[Shot, ...]
    joins: tuple[Join, ...]
    caption_in: Literal["txt", "json", "container", "nowhere"] = "txt"
    uneven: bool = False
    """Frames last differently long (variable frame rate); fps is their mean."""
    tone: bool = False
    """A soft chord as an AAC track."""
    turned: bool = False
    """Stored lying on its side, with a display matrix that sets it upright."""
    cut_off: bool = False
    """Only the first 60 % of the bytes are kept, so that the index at the end is missing."""

    def timeline(self) -> Timeline:
        """Where its shots lie."""
        return lay_out([round(shot.seconds * self.fps) for shot in self.shots], self.joins)


CUT = Join()
DISSOLVE = Join("dissolve", frames=16)
FADE = Join("fade_through_black", frames=12, black=6)

DAWN = ridges("2b3f73 7d6a9a f0a58f ffe0b5", "c9a9b8", "1d2b3a", "ffe2ad", (0.68, 0.3), "ffd9c4")
NOON = ridges("2f7fc4 8cc4e8 e4f2f5", "a9c7c4", "274d2f", "fff7df", (0.2, 0.16), "ffffff")
WINTER = ridges("20304f 5b7a9d c8d8e4", "b9c9d8", "2b3f52", "fff1da", (0.3, 0.3), "eef2f6", speed=-1)
SUNSET = Shot(sea("2a2a5a 8f4b7a f2875d ffd08a", "10304f", "c9705a", "ffd48a", (0.36, 0.4)), 3.0)
MOONLIGHT = sea("060a1f 0d1b3e 27406b", "06122b", "31598a", "dfe8ff", (0.66, 0.2), starry=True)
DUSK_TOWN = skyline("0a1030 27265e 7a3f7a f08a6a", "4a3a6e", (0.2, 0.2))
DAY_TOWN = skyline("5aa9d6 a8d4e6 f7e3c4", "8fa8b8", (0.8, 0.15), speed=-1.5)
GLASS = kaleidoscope("1b1b3a 693668 f25f5c ffe066 50c5b7 247ba0")
PETALS = kaleidoscope("3a0ca3 7209b7 f72585 ff9e00 ffe5d9 4361ee", mirrors=12)

REELS = (
    Reel(
        "mountain_morning.mp4",
        "Dawn breaks over misty mountain ranges, the camera glides above a sea of clouds, and striped "
        "hot-air balloons rise over green hills.",
        480,
        270,
        24,
        (Shot(DAWN, 3.0, take=1), Shot(clouds_from_above, 2.6), Shot(balloons(NOON), 3.2, take=4)),
        (DISSOLVE, CUT),
    ),
    Reel(
        "ocean_day_and_night.mp4",
        "The sun sets over rolling waves, fish cross a sunlit reef, and the moon shines on a dark sea.",
        480,
        270,
        25,
        (SUNSET, Shot(reef, 3.2), Shot(MOONLIGHT, 2.8, take=2)),
        (CUT, CUT),
        tone=True,
    ),
    Reel(
        "city_after_dark.mp4",
        "A skyline with lit windows is mirrored in water at dusk, cars pass on a road between street lamps, "
        "and town lights blur behind a rainy window.",
        426,
        240,
        30,
        (Shot(DUSK_TOWN, 2.8), Shot(night_road, 2.6), Shot(city_bokeh, 2.4)),
        (CUT, CUT),
        caption_in="json",
    ),
    Reel(
        "toy_workshop.webm",
        "Glossy balls bounce on a studio floor, gears turn in mesh, and paper pinwheels spin on a meadow.",
        384,
        216,
        30,
        (Shot(bouncing_balls, 2.6), Shot(gears, 2.2), Shot(pinwheels, 2.6)),
        (CUT, CUT),
    ),
    Reel(
        "winter_night_portrait.mp4",
        "Northern lights wave above a lake, then snow falls on a hut in the woods.",
        216,
        384,
        24,
        (Shot(aurora, 3.2), Shot(snowy_wood, 3.0)),
        (FADE,),
        caption_in="container",
    ),
    Reel(
        "deep_space.webm",
        "A ringed planet turns among stars, clouds of gas glow and drift, and stars stretch into streaks.",
        432,
        240,
        24,
        (Shot(ringed_planet, 3.0), Shot(nebula, 2.8), Shot(star_leap, 2.2)),
        (FADE, CUT),
    ),
    Reel(
        "moving_patterns.mp4",
        "A kaleidoscope folds coloured glass, inks of coral and teal flow, and a neon tunnel rushes by.",
        400,
        224,
        24,
        (Shot(GLASS, 2.6), Shot(ink, 2.6), Shot(neon_tunnel, 2.2)),
        (CUT, DISSOLVE),
        uneven=True,
    ),
    Reel(
        "phone_upright.mp4",
        "",
        180,
        320,
        30,
        (Shot(pond, 2.8), Shot(PETALS, 2.0, take=3)),
        (CUT,),
        caption_in="nowhere",
        turned=True,
    ),
    Reel(
        "travel_reel.mp4",
        "A test card, then desert dunes, snowy ranges, a town by the water and the sea at sunset.",
        480,
        270,
        25,
        # The test card stands still and the sunset is in another file too, as it happens with raw footage.
        (
            Shot(colour_bars, 2.0),
            Shot(dunes, 2.8),
            Shot(WINTER, 2.6, take=7),
            Shot(DAY_TOWN, 2.4, take=5),
            SUNSET,
        ),
        (CUT, CUT, DISSOLVE, CUT),
    ),
    Reel(
        "unfinished_recording.mp4",
        "Balloons over green hills.",
        384,
        216,
        24,
        (Shot(balloons(NOON), 2.0, take=6), Shot(gears, 2.0, take=1)),
        (CUT,),
        cut_off=True,
    ),
)
