"""Makes hard videos for shot detectors from real footage: many kinds of transitions, and what only looks like one.

    python -m tests.bench.shot_corpus FOOTAGE OUT [--split tuning|sealed|other] [--videos N] [--seed N]

FOOTAGE is a folder of videos; the transitions of those that hold more than a single shot are in
`shot_truth.json`. Each source
belongs to one part by the hash of its name, so that no part sees footage of another. `other` uses the sources of
`sealed` and transitions of other makes and lengths. The truth is written beside each video as a `.cuts.json`; its
types name the kind of transition, and `not_cuts` the disturbances.
"""

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tests.bench.shot_footage import VIDEO_SUFFIXES, Frames, Shot, encode, read_frames

Floats = NDArray[np.float32]  # one picture [h, w, 3], or pictures [n, h, w, 3]
Field = NDArray[np.float32]  # [h, w] in 0..1: when a wipe reaches each pixel

_LONGEST_SHOT = 130
_SHORTEST_SHOT = 14
_SHOTS_PER_SOURCE = 14
_JOINS = 12


@dataclass(frozen=True)
class Recipe:
    """What a part is made of.

    Attributes:
        kinds: Share of each kind of transition.
        mixed: Fewest and most mixed frames of each gradual kind.
        disturbances: Kinds of disturbance, equally likely.
        eased: Whether gradual transitions may start and stop gently.
        drawn_look: Share of the pieces that are flattened to few tones and shown on twos or threes.
        low_rate: Share of the videos that show about every second frame.
        dark: Share of the videos that are nearly black.
    """

    kinds: dict[str, float]
    mixed: dict[str, tuple[int, int]]
    disturbances: tuple[str, ...]
    eased: bool
    drawn_look: float = 0.0
    low_rate: float = 0.0
    dark: float = 0.0


_MIXED = {
    "dissolve": (4, 24),
    "long_dissolve": (36, 90),
    "fade": (4, 20),
    "blink": (1, 3),
    "wipe": (5, 30),
    "matte": (8, 30),
    "iris": (8, 30),
    "push": (4, 20),
    "slide": (5, 20),
    "zoom": (4, 16),
}
_DISTURBANCES = (
    "flash",
    "strobe",
    "step",
    "ramp",
    "shake",
    "whip",
    "punch",
    "caption",
    "picture",
    "passer",
    "explosion",
    "freeze",
)
USUAL = Recipe(
    {
        "cut": 0.32,
        "jump": 0.1,
        "dissolve": 0.13,
        "long_dissolve": 0.07,
        "fade": 0.07,
        "blink": 0.05,
        "wipe": 0.08,
        "matte": 0.06,
        "iris": 0.03,
        "push": 0.03,
        "slide": 0.03,
        "zoom": 0.03,
    },
    _MIXED,
    _DISTURBANCES,
    eased=False,
)
LEARNT_COMMON = Recipe(
    {
        "cut": 0.28,
        "jump": 0.15,
        "dissolve": 0.12,
        "long_dissolve": 0.07,
        "fade": 0.07,
        "blink": 0.06,
        "wipe": 0.07,
        "matte": 0.09,
        "iris": 0.02,
        "push": 0.03,
        "slide": 0.02,
        "zoom": 0.02,
    },
    _MIXED | {"dissolve": (3, 34), "matte": (4, 40), "push": (3, 20), "zoom": (3, 16)},
    _DISTURBANCES,
    eased=True,
    drawn_look=0.12,
)
"""What the networks learn from: more of what they miss in `USUAL`, and footage made to look drawn."""

LEARNT_FAST = Recipe(
    {
        "cut": 0.21,
        "montage": 0.06,
        "cut_to_fade": 0.07,
        "jump": 0.13,
        "smear": 0.08,
        "dip": 0.05,
        "dips": 0.03,
        "dissolve": 0.11,
        "long_dissolve": 0.06,
        "fade": 0.06,
        "blink": 0.05,
        "wipe": 0.06,
        "matte": 0.08,
        "iris": 0.02,
        "push": 0.02,
        "slide": 0.02,
        "zoom": 0.02,
    },
    LEARNT_COMMON.mixed,
    (*_DISTURBANCES, "whip", "pan", "jolt", "dim"),
    eased=True,
    drawn_look=0.12,
    low_rate=0.15,
    dark=0.12,
)
"""What the networks for cuts learn from as well: whip pans, dips, montages, videos of half the rate or nearly black.

Whip pans are both between shots (`smear`) and inside one (`whip`, `pan`, `jolt`), and so are dips to dark (`dip` and
`dim`).
"""

OTHER = Recipe(
    {
        "cut": 0.3,
        "jump": 0.1,
        "dissolve": 0.14,
        "long_dissolve": 0.08,
        "fade": 0.08,
        "blink": 0.06,
        "clock": 0.06,
        "bands": 0.06,
        "matte": 0.06,
        "slide": 0.06,
    },
    _MIXED | {"dissolve": (10, 22), "long_dissolve": (40, 80), "clock": (8, 40), "bands": (6, 24)},
    _DISTURBANCES,
    eased=True,
)


def part_of(name: str) -> str:
    """The part of a source: the one that `shot_truth.json` names, or else by the hash of its name up to `__`."""
    known: str | None = _truths().get(name, {}).get("part")
    if known is not None:
        return known
    return "sealed" if hashlib.sha256(name.split("__")[0].encode()).digest()[0] % 5 < 2 else "tuning"


def truth_of(path: Path) -> dict[str, Any]:
    """What is known of a video of footage; one that is not in the list holds a single shot."""
    found: dict[str, Any] = _truths().get(path.name, {"transitions": []})
    return found


def known_films(part: str) -> list[str]:
    """Names of the films of a part whose truth is known, sorted."""
    return sorted(name for name in _truths() if part_of(name) == part)


@cache
def _truths() -> dict[str, Any]:
    truths: dict[str, Any] = json.loads(Path(__file__).with_name("shot_truth.json").read_text())
    return truths


def shots_of(path: Path, frames: Frames) -> list[Shot]:
    """The shots of one video of footage, split by its truth; frames of hardly any contrast are left out."""
    transitions = truth_of(path)["transitions"]
    starts = [0, *(each["end_frame"] + (0 if each["required"] else 3) for each in transitions)]
    ends = [*(each["start_frame"] + (1 if each["required"] else -2) for each in transitions), len(frames)]
    shots: list[Shot] = []
    for start, end in zip(starts, ends, strict=True):
        lit = [frame for frame in frames[start : min(end, start + _LONGEST_SHOT)] if frame.std() > 8]
        if len(lit) >= _SHORTEST_SHOT and len(shots) < _SHOTS_PER_SOURCE:
            shots.append(Shot(f"{path.name}/{start}", np.stack(lit)))
    return shots


def film(
    shots: list[Shot], seed: int, recipe: Recipe
) -> tuple[list[Floats], list[dict[str, Any]], list[dict[str, Any]]]:
    """Frames, transitions and disturbances of a video of a dozen joins, the same for the same seed."""
    rng = np.random.default_rng(seed)
    made = _Film(rng, recipe, shots)
    for kind in rng.choice(list(recipe.kinds), size=_JOINS, p=_shares(recipe.kinds)):
        made.join(str(kind))
    return made.finished(), made.transitions, made.not_cuts


def write_video(path: Path, shots: list[Shot], seed: int, recipe: Recipe) -> None:
    """Write a made video and its truth."""
    frames, transitions, not_cuts = film(shots, seed, recipe)
    encode(path, frames, crf=int(np.random.default_rng(seed).integers(20, 36)))
    truth = {"file": path.name, "frames": len(frames), "transitions": transitions, "not_cuts": not_cuts}
    path.with_suffix(".cuts.json").write_text(json.dumps(truth))


def _shares(kinds: dict[str, float]) -> NDArray[np.float64]:
    shares = np.array(list(kinds.values()), np.float64)
    return np.asarray(shares / shares.sum(), np.float64)


@dataclass
class _Film:
    rng: np.random.Generator
    recipe: Recipe
    shots: list[Shot]
    frames: list[Any] = field(default_factory=list)
    transitions: list[dict[str, Any]] = field(default_factory=list)
    not_cuts: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hold = 1  # frames that each picture of the piece is shown for
        low = self.recipe.low_rate > 0 and self.rng.random() < self.recipe.low_rate
        self._speed = (
            float(self.rng.uniform(1.6, 2.5)) if low else 1.0
        )  # frames of the shot for each one shown
        self._dark = self.recipe.dark > 0 and self.rng.random() < self.recipe.dark
        self._shot = self._pick(None)
        self._look = self._new_look()
        self._place = int(self.rng.integers(len(self._shot.frames)))
        self._extend(self._clean())

    def join(self, kind: str) -> None:
        """Go over to another shot, or to another moment of this one."""
        if kind == "jump" and not self._jump():
            kind = "cut"
        if kind == "jump":
            self._note("jump", len(self.frames) - 1, len(self.frames))
            self._extend(self._clean())
            return
        special = {
            "montage": self._montage,
            "dips": self._dips,
            "dip": self._dip,
            "smear": self._smear,
            "cut_to_fade": self._cut_to_fade,
        }
        if kind in special:
            special[kind]()
            self._extend(self._clean())
            return
        width = self._width(kind)
        outgoing = self._play(width) if width else []
        self._go_over()
        start = len(self.frames) - 1
        incoming = self._play(width)
        if kind == "fade":
            self._fade(outgoing, incoming)
        elif width:
            mix = _mixer(kind, self.rng, outgoing[0].shape)
            eased = self.recipe.eased and (not self.recipe.drawn_look or self.rng.random() < 0.5)
            for number, (a, b) in enumerate(zip(outgoing, incoming, strict=True)):
                share = (number + 1) / (width + 1)
                if eased:
                    share = share * share * (3 - 2 * share)
                self.frames.append(mix(a, b, share))
        self._note("cut" if width == 0 else kind, start, len(self.frames))
        self._extend(self._clean())

    def finished(self) -> list[Floats]:
        """All frames, with what lies over the whole film: grain, a logo, bars."""
        rng = self.rng
        over: list[Callable[[Floats], Floats]] = []
        if rng.random() < 0.25:
            sigma = rng.uniform(3, 14)
            over.append(lambda x: x + rng.standard_normal((*x.shape[:2], 1), np.float32) * np.float32(sigma))
        if rng.random() < 0.3:
            over.append(_logo(rng, self.frames[0].shape))
        if rng.random() < 0.2:
            over.append(_bars(rng, self.frames[0].shape))
        done = []
        for frame in self.frames:
            for each in over:
                frame = each(frame)
            done.append(frame)
        return done

    def _pick(self, known: Shot | None) -> Shot:
        while True:
            # Half of all cuts go to another shot of the same source: similar scenes are the hard ones.
            shot = self.shots[self.rng.integers(len(self.shots))]
            if known is not None and self.rng.random() < 0.4:
                source = known.scene.rsplit("/", 1)[0] + "/"
                kin = [each for each in self.shots if each.scene.startswith(source) and each is not known]
                shot = kin[self.rng.integers(len(kin))] if kin else shot
            if known is None or shot.scene != known.scene:
                return shot

    def _new_look(self) -> Callable[[Floats], Floats]:
        """A crop and perhaps a mirror, kept for one piece."""
        rng = self.rng
        height, width = self.shots[0].frames.shape[1:3]
        mirrored, scale = rng.random() < 0.5, rng.uniform(0.55, 1) if rng.random() < 0.3 else 1.0
        rows, columns = int(height * scale), int(width * scale)
        top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))

        flat = self.recipe.drawn_look > 0 and rng.random() < self.recipe.drawn_look
        self._hold = int(rng.integers(2, 4)) if flat else 1
        step = float(rng.uniform(24, 56)) if self.recipe.drawn_look > 0 else 1.0
        gain = np.float32(rng.uniform(0.06, 0.35) if self._dark else 1)

        def look(picture: Floats) -> Floats:
            if flat:
                picture = np.asarray((cv2.blur(picture, (3, 3)) / step).round() * step, np.float32)
            cropped = gain * picture[top : top + rows, left : left + columns]
            if scale < 1:
                scaled = cv2.resize(cropped, (width, height), interpolation=cv2.INTER_LINEAR)
                cropped = np.asarray(scaled, np.float32)
            return cropped[:, ::-1] if mirrored else cropped

        return look

    def _play(self, frames: int) -> list[Floats]:
        """The next frames of the shot, back again where it is too short."""
        last = len(self._shot.frames) - 1
        places = self._place + (np.arange(frames) * self._speed).astype(np.intp)
        self._place += round(frames * self._speed)
        bounced = last - np.abs(places // self._hold * self._hold % (2 * last) - last)
        return [self._look(self._shot.frames[place].astype(np.float32)) for place in bounced]

    def _jump(self) -> bool:
        """Skip part of the shot, perhaps closer; False where nothing much would change."""
        last = len(self._shot.frames) - 1
        shown = self._play(1)[0]
        look = self._look
        self._place += int(self.rng.integers(15, max(16, min(150, last))))
        if self.rng.random() < 0.3:
            factor = self.rng.uniform(1.1, 1.4)
            self._look = lambda picture: _scaled(look(picture), factor)
        return float(np.abs(self._play(1)[0] - shown).mean()) > 9

    def _clean(self) -> list[Floats]:
        length = int(self.rng.integers(10, 18) if self.rng.random() < 0.2 else self.rng.integers(30, 90))
        frames = self._play(round(length / self._speed))
        if len(frames) >= 36 and self.rng.random() < 0.55:
            kind = str(self.rng.choice(self.recipe.disturbances))
            first = int(self.rng.integers(9, len(frames) - 24))
            end = _disturb(kind, frames, first, self.rng, self._pick(self._shot))
            start = len(self.frames) + first
            self.not_cuts.append({"type": kind, "start_frame": start, "end_frame": len(self.frames) + end})
        return frames

    def _width(self, kind: str) -> int:
        fewest, most = self.recipe.mixed.get(kind, (0, 0))
        width = int(self.rng.integers(fewest, most + 1))
        return max(1, round(width / self._speed)) if width else 0

    def _go_over(self) -> None:
        """Take another shot, at any place of it."""
        self._shot = self._pick(self._shot)
        self._place = int(self.rng.integers(len(self._shot.frames)))
        self._look = self._new_look()

    def _montage(self) -> None:
        """Cut several times to shots of a few frames."""
        for _ in range(int(self.rng.integers(3, 8))):
            self._go_over()
            self._note("cut", len(self.frames) - 1, len(self.frames))
            self._extend(self._play(int(self.rng.integers(2, 11))))
        self._go_over()
        self._note("cut", len(self.frames) - 1, len(self.frames))

    def _dips(self) -> None:
        """Dip to dark several times, between shots of a few frames."""
        for _ in range(int(self.rng.integers(2, 6))):
            self._dip()
            self._extend(self._play(int(self.rng.integers(4, 16))))
        self._dip()

    def _dip(self) -> None:
        """Go over to another shot by way of a few frames of a dark picture that is not black."""
        rng, start = self.rng, len(self.frames) - 1
        width = int(rng.integers(3, 11))
        changed = int(rng.integers(1, width))
        outgoing, ground = self._play(changed), self._dark_ground()
        self._go_over()
        pictures = outgoing + self._play(width - changed)
        share = _dipped(rng, width, float(rng.uniform(0.7, 0.97)))
        self._extend([a + (ground - a) * each for a, each in zip(pictures, share, strict=True)])
        self._note("dip", start, len(self.frames))

    def _dark_ground(self) -> Floats:
        """A dark picture: one tone, hardly lit, or another scene."""
        picture = self._look(self.shots[self.rng.integers(len(self.shots))].frames[0].astype(np.float32))
        level = self.rng.uniform(0, 40) * (0.2 if self._dark else 1)
        tone = (level * self.rng.uniform(0.5, 1, 3)).astype(np.float32)
        return tone + picture * np.float32(self.rng.choice([0, self.rng.uniform(0.02, 0.15)]))

    def _smear(self) -> None:
        """Go over to another shot in the middle of a whip pan, or at one end of it."""
        rng, start = self.rng, len(self.frames) - 1
        away, there = (int(each) for each in rng.integers(2, 7, 2))
        one_sided = rng.random()
        if one_sided < 0.3:
            away, there = (away + 2, 0) if one_sided < 0.15 else (0, there + 2)
        outgoing = self._play(away)
        self._go_over()
        whip = _Whip(rng)
        self._extend([whip(each, (n + 1) / away, away) for n, each in enumerate(outgoing)])
        self._extend([whip(each, n / there - 1, there) for n, each in enumerate(self._play(there))])
        if away and there and rng.random() < 0.4:
            last, first = self.frames[start + away], self.frames[start + away + 1]
            self.frames[start + away] = (2 * last + first) / 3
            self.frames[start + away + 1] = (last + 2 * first) / 3
        self._note("smear", start, len(self.frames))

    def _cut_to_fade(self) -> None:
        """Cut into a shot that fades in from a tone, or out of one that fades towards it; never wholly."""
        rng = self.rng
        tone = np.float32(rng.choice([0, 0, 0, 255, rng.uniform(0, 255)]))
        width, strength = int(rng.integers(6, 31)), np.float32(rng.uniform(0.3, 0.93))
        shares = np.linspace(strength, 0, width, endpoint=False, dtype=np.float32)
        if out := rng.random() < 0.3:
            self._extend(
                [a + (tone - a) * each for a, each in zip(self._play(width), shares[::-1], strict=True)]
            )
        self._go_over()
        self._note("cut", len(self.frames) - 1, len(self.frames))
        if not out or rng.random() < 0.3:
            self._extend([a + (tone - a) * each for a, each in zip(self._play(width), shares, strict=True)])

    def _fade(self, outgoing: list[Floats], incoming: list[Floats]) -> None:
        width = len(outgoing)
        tone = np.float32(self.rng.choice([0.0, 255.0], p=[0.75, 0.25]))
        shares = np.arange(1, width + 1, dtype=np.float32) / (width + 1)
        self._extend([a + (tone - a) * share for a, share in zip(outgoing, shares, strict=True)])
        self._extend([np.full_like(outgoing[0], tone)] * int(self.rng.integers(1, 10)))
        self._extend([tone + (b - tone) * share for b, share in zip(incoming, shares, strict=True)])

    def _extend(self, frames: list[Floats]) -> None:
        self.frames.extend(frames)

    def _note(self, kind: str, start: int, end: int) -> None:
        allowed = 2 if kind == "fade" else 1
        noted = {"type": kind, "start_frame": start, "end_frame": end, "required": True}
        self.transitions.append(noted | {"allowed_boundaries": allowed})


def _mixer(
    kind: str, rng: np.random.Generator, shape: tuple[int, ...]
) -> Callable[[Floats, Floats, float], Floats]:
    """A function of the outgoing picture, the incoming one and the share of the way that is done."""
    height, width = shape[:2]
    if kind in ("dissolve", "long_dissolve", "blink"):
        return lambda a, b, share: a + (b - a) * np.float32(share)
    if kind in ("push", "slide"):
        across, sign = bool(rng.random() < 0.6), int(rng.choice([-1, 1]))
        pushed = kind == "push"
        return lambda a, b, share: _pushed(a, b, share, across, sign, pushed)
    if kind == "zoom":
        return lambda a, b, share: (
            (1 - np.float32(share)) * _scaled(a, 1 + 2 * share)
            + np.float32(share) * _scaled(b, 3 - 2 * share)
        )
    when = _when(kind, rng, height, width)
    soft = np.float32(rng.choice([0.01, rng.uniform(0.03, 0.4)]))

    def wiped(a: Floats, b: Floats, share: float) -> Floats:
        alpha = ((np.float32(share) * (1 + soft) - when) / soft).clip(0, 1)[:, :, None]
        return np.asarray(a + (b - a) * alpha, np.float32)

    return wiped


class _Whip:
    """Pictures as a camera sees them that whips to a side, or an editor's effect of it with mirrored tiles."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._axis = int(rng.random() < 0.75)  # 1 is sideways
        self._reach = float(rng.choice([-1, 1]) * rng.uniform(0.5, 1.8))
        self._power = float(rng.uniform(1.2, 2.5))
        self._shutter = float(rng.uniform(0.5, 1))

    def __call__(self, picture: Floats, share: float, frames: int) -> Floats:
        """The picture at a share of the way: 0 at rest, 1 or -1 at the fastest, reached in so many frames."""
        size = picture.shape[self._axis]
        moved = round(np.sign(share) * abs(share) ** self._power * self._reach * size)
        speed = self._power * abs(share) ** (self._power - 1) * abs(self._reach) * size / frames
        places = (np.arange(size) + moved) % (2 * size)
        turned = np.take(picture, np.minimum(places, 2 * size - 1 - places), self._axis)
        length = max(1, round(speed * self._shutter))
        return np.asarray(cv2.blur(turned, (length, 1) if self._axis else (1, length)), np.float32)


def _dipped(rng: np.random.Generator, width: int, most: float) -> Floats:
    """How far each frame of a dip is gone: up to most and back, by a ramp or at once."""
    ramp = np.minimum(np.arange(1, width + 1), np.arange(width, 0, -1)) / ((width + 1) / 2)
    return np.asarray(most * np.minimum(1, ramp * rng.uniform(1, 3)), np.float32)


def _when(kind: str, rng: np.random.Generator, height: int, width: int) -> Field:
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    rows, columns = rows / (height - 1) - 0.5, columns / (width - 1) - 0.5
    if kind == "wipe":
        turn = rng.choice([0, np.pi / 2, np.pi, 3 * np.pi / 2, rng.uniform(0, 2 * np.pi)])
        when = np.cos(turn) * columns + np.sin(turn) * rows
    elif kind == "iris":
        when = np.hypot(rows, columns) * rng.choice([-1, 1])
    elif kind == "clock":
        when = np.arctan2(rows, columns) * rng.choice([-1, 1])
    elif kind == "bands":
        when = (columns + 0.5) * rng.integers(4, 9) % 1 + 0.001 * rows
    else:
        coarse = rng.random((int(rng.integers(3, 9)), int(rng.integers(4, 14)))).astype(np.float32)
        when = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.asarray((when - when.min()) / (when.max() - when.min()), np.float32)


def _pushed(a: Floats, b: Floats, share: float, across: bool, sign: int, pushed: bool) -> Floats:
    axis = 1 if across else 0
    size = a.shape[axis]
    moved = min(size - 1, max(1, round(share * size)))
    if sign < 0:
        a, b = np.flip(a, axis), np.flip(b, axis)
    rest = np.take(a, range(moved, size), axis) if pushed else np.take(a, range(size - moved), axis)
    new = np.take(b, range(moved), axis)
    whole = np.concatenate([rest, new] if pushed else [new, np.take(a, range(moved, size), axis)], axis)
    return np.flip(whole, axis) if sign < 0 else whole


def _scaled(picture: Floats, factor: float) -> Floats:
    height, width = picture.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), 0, factor)
    return np.asarray(
        cv2.warpAffine(picture, turn, (width, height), borderMode=cv2.BORDER_REFLECT), np.float32
    )


def _disturb(kind: str, frames: list[Floats], first: int, rng: np.random.Generator, other: Shot) -> int:
    """Change some frames in place by what is no transition; one past the last frame of the change."""
    height, width = frames[0].shape[:2]
    if kind == "flash":
        end = first + int(rng.integers(1, 5))
        strength = np.float32(rng.uniform(0.4, 1))
        for n in range(first, end):
            frames[n] = frames[n] + (255 - frames[n]) * strength
    elif kind == "strobe":
        end = first + int(rng.integers(8, 24))
        period, tone = int(rng.integers(2, 5)), np.float32(rng.choice([0, 255]))
        for n in range(first, end, period):
            frames[n] = frames[n] + (tone - frames[n]) * np.float32(0.8)
    elif kind == "step":
        end = first + 1
        factor = np.float32(rng.choice([rng.uniform(0.4, 0.8), rng.uniform(1.3, 2)]))
        frames[first:] = [frame * factor for frame in frames[first:]]
    elif kind == "ramp":
        end = first + int(rng.integers(5, 20))
        curve = np.interp(np.arange(len(frames)), [first, end], [1, rng.uniform(0.3, 1.8)]).astype(np.float32)
        frames[:] = [frame * each for frame, each in zip(frames, curve, strict=True)]
    elif kind == "explosion":
        end = first + int(rng.integers(10, 22))
        rows, columns = np.mgrid[:height, :width].astype(np.float32)
        y, x = rng.uniform(0.2, 0.8) * height, rng.uniform(0.2, 0.8) * width
        away = np.hypot(rows - y, columns - x)[:, :, None] / width
        colour = np.array([255, rng.uniform(180, 255), rng.uniform(60, 255)], np.float32)
        for n in range(first, end):
            age = (n - first) / (end - first)
            light = np.exp(-((away / (0.15 + 1.2 * age)) ** 2)) * 2 * (1 - age) ** 1.5
            frames[n] = frames[n] + (colour - frames[n]) * light.clip(0, 1)
    elif kind in ("shake", "whip", "pan", "punch"):
        end = _move(kind, frames, first, rng)
    elif kind == "jolt":
        away, there = (int(each) for each in rng.integers(2, 7, 2))
        end, whip = first + away + there, _Whip(rng)
        for n in range(away):
            frames[first + n] = whip(frames[first + n], (n + 1) / away, away)
        for n in range(there):
            frames[first + away + n] = whip(frames[first + away + n], n / there - 1, there)
    elif kind == "dim":
        width = int(rng.integers(3, 11))
        end, ground = first + width, (rng.uniform(0, 40) * rng.uniform(0.5, 1, 3)).astype(np.float32)
        for n, share in enumerate(_dipped(rng, width, float(rng.uniform(0.5, 0.97)))):
            frames[first + n] = frames[first + n] + (ground - frames[first + n]) * share
    elif kind == "caption":
        end = first + 1
        over = _caption(rng, frames[0].shape)
        slow = int(rng.choice([1, 1, 8]))
        for n in range(first, len(frames)):
            frames[n] = over(frames[n], min(1.0, (n - first + 1) / slow))
    elif kind == "picture":
        end = first + 1
        rows, columns = int(height * rng.uniform(0.25, 0.6)), int(width * rng.uniform(0.25, 0.6))
        top, left = int(rng.integers(height - rows)), int(rng.integers(width - columns))
        for n in range(first, len(frames) if rng.random() < 0.5 else first + 20):
            inset = other.frames[(n - first) % len(other.frames)].astype(np.float32)
            frames[n] = frames[n].copy()
            frames[n][top : top + rows, left : left + columns] = cv2.resize(inset, (columns, rows))
    elif kind == "passer":
        end = first + int(rng.integers(6, 16))
        tone, wide = np.float32(rng.uniform(0, 120)), rng.uniform(0.3, 0.9)
        texture = cv2.GaussianBlur(rng.normal(tone, 60, (height, width, 3)).astype(np.float32), (0, 0), 6)
        for n in range(first, end):
            middle = (n - first + 0.5) / (end - first) * (1 + wide) - wide / 2
            low, high = (int(width * edge) for edge in (middle - wide / 2, middle + wide / 2))
            frames[n] = frames[n].copy()
            frames[n][:, max(0, low) : max(0, high)] = texture[:, max(0, low) : max(0, high)]
    else:  # freeze
        end = first + int(rng.integers(4, 14))
        frames[first:end] = [frames[first]] * (end - first)
    return end


def _move(kind: str, frames: list[Floats], first: int, rng: np.random.Generator) -> int:
    """Camera work inside a shot, as seen through a smaller window of the picture."""
    height, width = frames[0].shape[:2]
    end = first + int(rng.integers(5, 14))
    zoom = np.full(len(frames), 1.8, np.float32)
    x, y = np.zeros(len(frames)), np.zeros(len(frames))
    if kind == "pan":
        zoom[:] = rng.uniform(1.2, 1.8)
        share = np.interp(np.arange(len(frames)), [first, end], [0, 1])
        x = (share * share * (3 - 2 * share) * 2 - 1) * rng.choice([-1, 1])
    elif kind == "whip":
        x = np.interp(np.arange(len(frames)), [first, end], [-1, 1]) * rng.choice([-1, 1])
    elif kind == "shake":
        x[first:end], y[first:end] = rng.uniform(-0.6, 0.6, (2, end - first))
    else:
        zoom = np.interp(np.arange(len(frames)), [first, end], [1, rng.uniform(1.5, 2.2)]).astype(np.float32)
    for n, frame in enumerate(frames):
        factor = float(zoom[n])
        reach = (factor - 1) / 2
        turn = np.array(
            [
                [factor, 0, -reach * width * (1 + x[n])],
                [0, factor, -reach * height * (1 + y[n])],
            ],
            np.float32,
        )
        moved = cv2.warpAffine(frame, turn, (width, height), borderMode=cv2.BORDER_REFLECT)
        if kind in ("whip", "pan") and first <= n < end:
            smear = max(1, int(reach * width * 2 / (end - first) * 0.7))
            moved = cv2.blur(moved, (smear, 1))
        frames[n] = np.asarray(moved, np.float32)
    return end


def _caption(rng: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Floats, float], Floats]:
    height, width = shape[:2]
    big = rng.random() < 0.4
    letters = "".join(rng.choice(list("ABCDEFGHIKLMNOPRSTUVW   aeiou")) for _ in range(8 if big else 24))
    y = int(height * (rng.uniform(0.4, 0.65) if big else rng.uniform(0.75, 0.95)))
    ink = _written(letters, (int(width * 0.06), y), 1.5 if big else 0.5, 4 if big else 1, height, width)
    plate = np.zeros_like(ink)
    if rng.random() < 0.4:
        plate[max(0, y - height // 8) : y + height // 16] = 0.7
    tone = np.float32(rng.choice([255, 255, 0]))

    def over(picture: Floats, strength: float) -> Floats:
        backed = picture * (1 - (plate * np.float32(strength))[:, :, None])
        return backed + (tone - backed) * (ink * np.float32(strength))[:, :, None]

    return over


def _written(
    letters: str, place: tuple[int, int], size: float, thickness: int, height: int, width: int
) -> Field:
    """How much of each pixel the letters cover; sizes are for pictures 256 pixels wide."""
    ink = np.zeros((height, width), np.uint8)
    scale = width / 256
    cv2.putText(
        ink, letters, place, cv2.FONT_HERSHEY_SIMPLEX, size * scale, 255, max(1, round(thickness * scale))
    )
    return np.asarray(ink / 255, np.float32)


def _logo(rng: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Floats], Floats]:
    height, width = shape[:2]
    place = int(rng.choice([0.08, 0.75]) * width), int(rng.choice([0.15, 0.9]) * height)
    ink = _written("LOGO", place, float(rng.uniform(0.6, 1.2)), 2, height, width)
    alpha = (ink * np.float32(rng.uniform(0.5, 1)))[:, :, None]
    return lambda picture: picture + (255 - picture) * alpha


def _bars(rng: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Floats], Floats]:
    height, width = shape[:2]
    across = rng.random() < 0.6
    size = int((height if across else width) * rng.uniform(0.08, 0.2))

    def barred(picture: Floats) -> Floats:
        done = picture.copy()
        if across:
            done[:size] = done[-size:] = 0
        else:
            done[:, :size] = done[:, -size:] = 0
        return done

    return barred


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("footage", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", choices=["tuning", "sealed", "other"], default="tuning")
    parser.add_argument("--videos", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    wanted = "tuning" if arguments.split == "tuning" else "sealed"
    shots = [
        shot
        for path in sorted(arguments.footage.iterdir())
        if path.suffix in VIDEO_SUFFIXES and part_of(path.name) == wanted
        for shot in shots_of(path, read_frames(path))
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.videos):
        recipe = OTHER if arguments.split == "other" else USUAL
        write_video(arguments.out / f"{number:03d}.mp4", shots, arguments.seed + number, recipe)


if __name__ == "__main__":
    main()
