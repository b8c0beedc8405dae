"""Synthetic footage with exact shot boundaries: random pieces of real shots, joined, disturbed, re-encoded.

The truth is written beside each video as a `.cuts.json`, in the conventions of the corpus.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]  # [n, HEIGHT, WIDTH, 3] RGB

WIDTH, HEIGHT, FPS = 256, 144, 25
MAX_FRAMES_PER_SHOT = 150
VIDEO_SUFFIXES = {".mp4", ".mkv", ".webm", ".avi", ".mov"}


@dataclass(frozen=True)
class Shot:
    """Real footage without a boundary; shots of one `scene` may look alike and are never joined."""

    scene: str
    frames: Frames


def read_frames(path: Path, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Frames:
    """All frames of a video, squeezed to (width, height)."""
    with av.open(str(path)) as container:
        return np.stack(
            [
                frame.reformat(*size, "rgb24", interpolation="AREA").to_ndarray()
                for frame in container.decode(video=0)
            ]
        )


def shots_of_montages(videos: Path) -> list[Shot]:
    """The shots of `montages/` whose source is not in `originals/`: footage the detector was not tuned on."""
    manifest = json.loads((videos / "manifest.json").read_text())["files"]
    seen = {
        f"{e['source']['repository']}/{e['source']['path']}"
        for e in manifest
        if e["name"].startswith("originals/")
    }
    seen.add(
        "github.com/photoprism/photoprism/assets/examples/earth.mov"
    )  # earth_at_night.avi in another box
    shots = []
    for path in sorted((videos / "montages").glob("*.mp4")):
        frames = read_frames(path)
        for shot in json.loads(path.with_suffix(".cuts.json").read_text())["shots"]:
            if shot["source"] not in seen:
                span = slice(shot["first_clean_frame"], shot["last_clean_frame"] + 1)
                shots.append(Shot(shot["source"], frames[span]))
    return shots


def thin(frames: Frames) -> Frames:
    """At most MAX_FRAMES_PER_SHOT frames in a row, from the middle."""
    first = max(0, (len(frames) - MAX_FRAMES_PER_SHOT) // 2)
    return frames[first : first + MAX_FRAMES_PER_SHOT].copy()


def write_video(
    path: Path,
    shots: list[Shot],
    seed: int,
    joins: int,
    dissolve_frames: tuple[int, int] = (8, 30),
    slower: int = 1,
) -> None:
    """Write a video of `joins` + 1 pieces and its truth, the same for the same seed.

    Six of ten joins are hard cuts, the rest dissolves with so many mixed frames and fades through black or white.
    One piece of five between hard cuts is short (8 to 15 frames); half of the longer ones are disturbed. Everything
    takes `slower` times as many frames, at `slower` times the rate.
    """
    rng = np.random.default_rng(seed)
    kinds = ["start", *rng.choice(["cut", "dissolve", "fade"], size=joins, p=[0.6, 0.25, 0.15]), "end"]
    mixed = {"dissolve": dissolve_frames, "fade": (6, 20)}  # frames of each piece that are not its own
    widths = [
        slower * int(rng.integers(*mixed[kind], endpoint=True)) if kind in mixed else 0 for kind in kinds
    ]
    written: list[Frames] = []
    transitions: list[dict[str, Any]] = []
    scene = ""
    for kind, left, right in zip(kinds[:-1], widths[:-1], widths[1:], strict=True):
        shot = shots[rng.integers(len(shots))]
        while shot.scene == scene:
            shot = shots[rng.integers(len(shots))]
        scene = shot.scene
        short = left == right == 0 and rng.random() < 0.2
        clean = slower * int(rng.integers(8, 16) if short else rng.integers(30, 80))
        piece = play(shot.frames, left + clean + right, rng, slower)
        if not short and rng.random() < 0.5:
            disturb(piece[left : left + clean], rng)
        join(written, piece, kind, left, transitions, rng)
    encode(path, written, crf=int(rng.integers(24, 41)), fps=slower * FPS)
    truth = {"file": path.name, "frames": len(written), "transitions": transitions, "not_cuts": []}
    path.with_suffix(".cuts.json").write_text(json.dumps(truth))


def play(frames: Frames, length: int, rng: np.random.Generator, slower: int = 1) -> NDArray[np.float32]:
    """`length` frames from a random place, forwards and back again where the shot is too short, perhaps mirrored.

    In slow motion the frames between are mixed from their neighbours.
    """
    last = len(frames) - 1
    first = rng.integers(last + 1)
    before, late = np.divmod(np.arange(length), slower)
    places = np.stack([before, before + 1]) + first
    pair = frames[last - np.abs(places % (2 * last) - last)]
    share = (late / slower).astype(np.float32)[:, None, None, None]
    piece: NDArray[np.float32] = (1 - share) * pair[0] + share * pair[1]
    return piece[:, :, ::-1] if rng.random() < 0.5 else piece


def disturb(clean: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Change the frames in place by something that is no shot boundary, away from both ends."""
    kind = rng.choice(["flash", "step", "ramp", "noise", "shake"])
    start = int(rng.integers(8, len(clean) - 12))
    if kind == "flash":
        flashed = clean[start : start + int(rng.integers(1, 4))]
        flashed += (255 - flashed) * rng.uniform(0.4, 0.95)
    elif kind == "step":
        clean[start:] *= rng.choice([rng.uniform(0.5, 0.8), rng.uniform(1.3, 1.8)])
    elif kind == "ramp":
        clean *= np.interp(np.arange(len(clean)), [start, start + 8], [1, rng.uniform(0.5, 1.6)])[
            :, None, None, None
        ]
    elif kind == "noise":
        clean += rng.normal(0, rng.uniform(4, 16), clean.shape)
    else:
        for frame in clean[start : start + 12]:
            dy, dx = int(rng.integers(-8, 9)), int(rng.integers(-12, 13))
            padded = np.pad(frame, ((8, 8), (12, 12), (0, 0)), mode="edge")
            frame[:] = padded[8 + dy : 8 + dy + HEIGHT, 12 + dx : 12 + dx + WIDTH]


def join(
    written: list[Any],
    piece: NDArray[np.float32],
    kind: str,
    width: int,
    transitions: list[dict[str, Any]],
    rng: np.random.Generator,
) -> None:
    """Append a piece to what is written, mixing `width` frames of both, and note the transition."""
    start = len(written) - width - 1
    share = np.arange(1, width + 1, dtype=np.float32) / (width + 1)
    if kind == "dissolve":
        for k in range(width):
            written[start + 1 + k] = (1 - share[k]) * written[start + 1 + k] + share[k] * piece[k]
        piece = piece[width:]
    elif kind == "fade":
        colour = rng.choice([0.0, 255.0], p=[0.8, 0.2])
        for k in range(width):
            written[start + 1 + k] += (colour - written[start + 1 + k]) * share[k]
            piece[k] += (colour - piece[k]) * (1 - share[k])
        written.extend(np.full_like(piece[:1], colour).repeat(rng.integers(1, 10), axis=0))
    end = len(written) + (width if kind == "fade" else 0)
    if kind != "start":
        truth = {"type": kind, "start_frame": start, "end_frame": end, "required": True}
        transitions.append(truth | {"allowed_boundaries": 2 if kind == "fade" else 1})
    written.extend(piece)


def encode(path: Path, frames: list[Any], crf: int, fps: int = FPS) -> None:
    """Write H.264 at a constant quality; one thread, so that the bytes do not depend on the machine."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": str(crf), "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = WIDTH, HEIGHT, "yuv420p", 1
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.clip(frame, 0, 255).astype(np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
