"""A folder of raw footage: the videos, their captions, and the truth about their cuts."""

import hashlib
import io
import json
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.codec.context import Flags
from av.container import OutputContainer
from av.video.stream import VideoStream

from reelweave.loader.storage import open_storage
from reelweave.pipelines.footage.reels import REELS, Reel
from reelweave.pipelines.footage.scenes import BLACK, draw_scene

_log = logging.getLogger(__name__)

RECORD = "footage.json"
KEPT_SHARE = 0.6
README = """Raw footage for `reelweave demo`, drawn by FFmpeg's filters. Nothing here was filmed.

NAME.mp4, NAME.webm    what to curate: H.264 and VP9, landscape and portrait, one of variable frame rate,
                       one turned by its display matrix, one with sound, one cut off in the middle
NAME.txt, NAME.json    the caption of a video; one video carries it inside, and one has none
NAME.cuts.json         where the cuts, dissolves and fades of a video are, frame by frame
footage.json           what all this was made from; while it is the same, nothing is rendered again

This file is no video, as in every folder that people fill by hand.
"""


def make_footage(folder: Path, reels: Sequence[Reel] = REELS) -> None:
    """Fill a folder with raw footage, unless it is there already.

    Every file appears whole or not at all, and the record last: the next run repeats one that was killed. On one
    machine the same reels give the same bytes.

    Args:
        folder: Made when missing; other files in it are left alone.
        reels: Reels to make.
    """
    files = open_storage(folder)
    graphs = [_graph(reel) for reel in reels]
    made_from = hashlib.sha256(repr((reels, graphs, av.library_versions, README)).encode())
    made_from.update(Path(__file__).read_bytes())
    record = made_from.hexdigest().encode()
    is_complete = {RECORD, *(reel.name for reel in reels)} <= {file.path for file in files.list()}
    if is_complete and files.read(RECORD) == record:
        return
    files.write("README.txt", README.encode())
    for reel in reels:
        began = time.perf_counter()
        stem = Path(reel.name).stem
        if reel.caption and reel.caption_in == "txt":
            files.write(f"{stem}.txt", f"{reel.caption}\n".encode())
        if reel.caption_in == "json":
            files.write(f"{stem}.json", json.dumps({"caption": reel.caption}).encode())
        video = render(reel)
        if reel.cut_off:
            video = video[: int(KEPT_SHARE * len(video))]
        else:
            files.write(f"{stem}.cuts.json", json.dumps(cut_list(reel), indent=1).encode())
        files.write(reel.name, video)
        _log.info("rendered %s in %.1f s", reel.name, time.perf_counter() - began)
    files.write(RECORD, record)


def render(reel: Reel) -> bytes:
    """Return a reel's file; one encoder thread and the bitexact flags make its bytes the same every time."""
    file = io.BytesIO()
    form = Path(reel.name).suffix.removeprefix(".")
    with (
        av.open(_graph(reel), format="lavfi") as drawn,
        av.open(file, "w", format=form, options={"fflags": "+bitexact"}) as container,
    ):
        if reel.caption_in == "container":
            container.metadata["comment"] = reel.caption
        streams: list[Any] = [_video_stream(container, reel)]
        streams += [container.add_stream("aac", rate=44100, layout="mono")] if reel.tone else []
        for packet in drawn.demux():
            for frame in packet.decode():
                container.mux(streams[packet.stream.index].encode(frame))
        for stream in streams:
            container.mux(stream.encode(None))
    return file.getvalue()


def _graph(reel: Reel) -> str:
    """Return the graph of a reel: each shot is a source, each join a cross-fade; that of a cut shows no mixed frame."""
    spans, shots = _spans(reel), reel.shots
    chains, label = [], "[s0]"
    for shot_index, (shot, (first, last)) in enumerate(zip(shots, spans, strict=True)):
        before = spans[shot_index - 1][1] if shot_index else 0
        end = spans[shot_index + 1][0] if shot_index + 1 < len(shots) else last + 1
        scene = draw_scene(shot.scene, reel.width, reel.height, reel.fps)
        chains.append(f"{scene},trim=end_frame={end - before}[s{shot_index}]")
        if shot_index:
            seconds = f"duration={(first - before) / reel.fps:.6f}:offset={before / reel.fps:.6f}"
            chains.append(f"{label}[s{shot_index}]xfade={seconds}[j{shot_index}]")
            label = f"[j{shot_index}]"
    missing = "select='not(eq(mod(n,7),2)+gte(mod(n,7),5))'," if reel.uneven else ""
    turn = "transpose=cclock," if reel.turned else ""
    chains.append(f"{label}{missing}{turn}format=yuv420p[out0]")
    if reel.tone:
        chord = "+".join(f"sin(2*PI*{pitch}*t)" for pitch in (220, 277, 330))
        seconds = f"{(spans[-1][1] + 1) / reel.fps:.6f}"
        chains.append(f"aevalsrc='0.1*({chord})':s=44100:d={seconds},aformat=fltp:44100:mono[out1]")
    return ";".join(chains)


def _video_stream(container: OutputContainer, reel: Reel) -> VideoStream:
    h264 = reel.name.endswith(".mp4")
    stream = container.add_stream("libx264" if h264 else "libvpx-vp9", rate=reel.fps)
    stream.width, stream.height = (reel.height, reel.width) if reel.turned else (reel.width, reel.height)
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.time_base = Fraction(1, reel.fps)
    context.thread_count = 1
    context.flags |= Flags.bitexact
    # With macroblock-tree rate control x264 may give other bytes for equal frames, even on one thread.
    x264 = {"preset": "veryfast", "crf": "24", "mbtree": "0"}
    context.options = x264 if h264 else {"deadline": "realtime", "cpu-used": "8", "crf": "30"}
    if reel.turned:
        stream.set_display_rotation(-90)
    return stream


def _spans(reel: Reel) -> list[tuple[int, int]]:
    """Return the first and the last untouched frame of every shot, before frames go missing."""
    spans, first = [], 0
    for shot in reel.shots:
        first += shot.mixed
        last = first + round(shot.seconds * reel.fps) - 1
        spans.append((first, last))
        first = last + 1
    return spans


def cut_list(reel: Reel) -> dict[str, Any]:
    """Return the truth about the cuts of a reel, as `reelweave bench shots` reads it."""
    # First and last frame of each shot, among the frames that an uneven reel shows.
    spans = _spans(reel)
    shown_frames = [
        frame for frame in range(spans[-1][1] + 1) if not reel.uneven or frame % 7 in (0, 1, 3, 4)
    ]
    spans = [
        (bisect_left(shown_frames, first), bisect_right(shown_frames, last) - 1) for first, last in spans
    ]
    # A transition lies between two shots: a fade where a black one stands between them.
    transitions, start, black = [], 0, None
    for shot, (first, last) in zip(reel.shots, spans, strict=True):
        if shot.scene == BLACK:
            black = [first, last]
            continue
        if first:
            details: dict[str, Any] = {"type": "cut"} if first == start + 1 else {"type": "dissolve"}
            if black:
                details = {"type": "fade_through_black", "black_frames": black}
            transition = {"start_frame": start, "end_frame": first, "required": True}
            transitions.append(details | transition | {"allowed_boundaries": 2 if black else 1})
        start, black = last, None
    return {
        "file": reel.name,
        "how": "drawn shot by shot, so every number is exact",
        "fps": f"{reel.fps}/1",
        "frames": len(shown_frames),
        "width": reel.height if reel.turned else reel.width,
        "height": reel.width if reel.turned else reel.height,
        "conventions": {
            "frames": "0-based, in presentation (decoded) order",
            "start_frame": "last untouched frame of the outgoing shot",
            "end_frame": "first untouched frame of the incoming shot",
            "allowed_boundaries": "how many reported boundaries inside start_frame..end_frame count as right",
            "required": "false: reporting it and leaving it out are both acceptable",
            "width, height": "as stored, before rotation",
        },
        "transitions": transitions,
        "not_cuts": [],
    }
