"""One reel becomes one file: frames are mixed, timed and encoded, with the same bytes every time."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, cycle, islice
from pathlib import Path

import av
import numpy as np
from av.codec.context import Flags
from av.container import OutputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pipelines.footage.reels import Reel

TICKS_PER_S = 60
UNEVEN = (2, 2, 3, 2, 4, 2)
"""How many ticks the frames of an uneven reel last, over and over: 24 frames a second on average."""
AUDIO_RATE = 44100
CHORD_HZ = (220.0, 277.18, 329.63)


def write_video(reel: Reel, seed: int, path: Path) -> None:
    """Render and encode a reel; `path` may have any name, the container follows the reel's.

    One encoder thread and the bitexact flags make the bytes depend on the reel, the seed and the
    installed libraries only.
    """
    times = frame_times(reel)
    form = Path(reel.name).suffix.removeprefix(".")
    with av.open(str(path), "w", format=form, options={"fflags": "+bitexact"}) as container:
        if reel.caption_in == "container":
            container.metadata.update(title=Path(reel.name).stem.replace("_", " "), comment=reel.caption)
        video = _video_stream(container, reel)
        audio = container.add_stream("aac", rate=AUDIO_RATE, layout="mono") if reel.tone else None
        sound = _chord(reel.timeline().frames / reel.fps)
        ticks = Fraction(1, TICKS_PER_S) if reel.uneven else Fraction(1, reel.fps)
        for time, picture in zip(times, _pictures(reel, seed, times), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = int(time / ticks), ticks
            container.mux(video.encode(frame))
            # One stretch of sound per frame keeps both tracks abreast in the file.
            if audio:
                for samples in islice(sound, AUDIO_RATE // reel.fps // 1024 + 1):
                    container.mux(audio.encode(samples))
        for stream in (video, audio):
            if stream:
                container.mux(stream.encode(None))


def frame_times(reel: Reel) -> list[Fraction]:
    """When each frame of a reel is shown, in seconds."""
    frames = reel.timeline().frames
    if not reel.uneven:
        return [Fraction(frame, reel.fps) for frame in range(frames)]
    return [Fraction(tick, TICKS_PER_S) for tick in accumulate(islice(cycle(UNEVEN), frames - 1), initial=0)]


def _video_stream(container: OutputContainer, reel: Reel) -> VideoStream:
    h264 = reel.name.endswith(".mp4")
    stream = container.add_stream("libx264" if h264 else "libvpx-vp9", rate=reel.fps)
    stream.width, stream.height = (reel.height, reel.width) if reel.turned else (reel.width, reel.height)
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.time_base = Fraction(1, TICKS_PER_S) if reel.uneven else Fraction(1, reel.fps)
    context.thread_count = 1
    context.flags |= Flags.bitexact
    # With macroblock-tree rate control x264 may give other bytes for equal frames, even on one thread.
    x264 = {"preset": "veryfast", "crf": "24", "mbtree": "0"}
    context.options = x264 if h264 else {"deadline": "realtime", "cpu-used": "8", "crf": "30"}
    if reel.turned:
        stream.set_display_rotation(-90)
    return stream


def _pictures(reel: Reel, seed: int, times: list[Fraction]) -> Iterator[NDArray[np.uint8]]:
    """Every frame as (height, width, 3), as it is to be stored."""
    timeline = reel.timeline()
    painters = [
        shot.scene(np.random.default_rng([seed, shot.take]), reel.width, reel.height) for shot in reel.shots
    ]
    for frame, time in enumerate(times):
        picture = np.zeros((3, reel.height, reel.width), np.float32)
        for shot, weight in timeline.weights(frame).items():
            picture += np.float32(255 * weight) * painters[shot](
                float(time - times[timeline.visible_from(shot)])
            ).clip(0, 1)
        upright = (picture + 0.5).astype(np.uint8).transpose(1, 2, 0)
        yield np.ascontiguousarray(np.rot90(upright) if reel.turned else upright)


def _chord(seconds: float) -> Iterator[av.AudioFrame]:
    """A swelling chord in frames of 1024 samples, the size AAC takes."""
    for start in range(0, int(seconds * AUDIO_RATE), 1024):
        at = np.arange(start, start + 1024) / AUDIO_RATE
        wave = sum(np.sin(2 * np.pi * pitch * at) for pitch in CHORD_HZ) * (0.08 + 0.05 * np.sin(np.pi * at))
        frame = av.AudioFrame.from_ndarray(wave[None].astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = AUDIO_RATE, start, Fraction(1, AUDIO_RATE)
        yield frame
