"""Films made to cost more than they hold: what curation spends on each, and on its clips.

    python -m tests.bench.hostile_films [--tree FOLDER] [--only WORDS] [--limit-s 120] > table.md

Each film is curated, with default settings, in a process of its own that is ended after ``--limit-s`` of processor
time. ``--tree`` names a checkout of another version, whose figures stand in columns of their own. Seconds are the
processor's, with start-up.
"""

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet

from tests.media import write_video

_REPO = Path(__file__).parent.parent.parent
_CURATE = """
import json, sys
from pathlib import Path
from tests.cutting import curated
found = curated(Path(sys.argv[1]), Path(sys.argv[2]))
rows = [(one.state, one.stage, one.reason, one.duration_s, len(clip)) for one, clip in found]
print("ROWS" + json.dumps(rows))
"""
_VP9_REPEAT = b"\x88"
"""A frame of VP9 that shows the picture decoded before: show_existing_frame (VP9 bitstream, 6.2), one byte."""

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Spent:
    """What curation of a film came to."""

    cpu_s: float
    out_bytes: int
    outcome: str


def stamped(gaps_s: Callable[[int], float], frames: int = 100, size: tuple[int, int] = (640, 360)):  # type: ignore[no-untyped-def]
    """A film whose frame ``n`` is shown for ``gaps_s(n)``."""

    def make(path: Path) -> None:
        times_s = np.cumsum([0.0, *(gaps_s(number) for number in range(frames - 1))])
        write_video(path, (frames,), times_s=times_s, size=size)

    return make


def repeats(size: tuple[int, int], frames: int) -> Callable[[Path], None]:
    """One picture of VP9, and frames of a byte that show it again."""

    def make(path: Path) -> None:
        with written(path) as container:
            stream = container.add_stream("libvpx-vp9", rate=30)
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            stream.time_base = stream.codec_context.time_base = Fraction(1, 30)
            stream.options = {"deadline": "realtime", "cpu-used": "8"}
            grey = np.full((size[1] * 3 // 2, size[0]), 128, np.uint8)
            first = av.VideoFrame.from_ndarray(grey, "yuv420p")
            first.pts = 0
            container.mux([*stream.encode(first), *stream.encode(None)])
            for number in range(1, frames):
                packet = Packet(_VP9_REPEAT)
                packet.stream, packet.time_base = stream, Fraction(1, 30)
                packet.pts = packet.dts = number
                container.mux_one(packet)

    return make


def changing_size(path: Path) -> None:
    """Every picture has another size."""
    with written(path) as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuvj420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 25)
        for number in range(300):
            side = 64 + 16 * (number * 7 % 97)
            packet = Packet(jpeg(side, 64 + 16 * (number * 11 % 89)))
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = number
            packet.is_keyframe = True
            container.mux_one(packet)


def jpeg(width: int, height: int) -> bytes:
    """One picture."""
    context = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt = width, height, "yuvj420p"
    context.time_base = Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(np.full((height * 3 // 2, width), 90, np.uint8), "yuvj420p")
    frame.pts = 0
    return b"".join(bytes(packet) for packet in context.encode(frame))


def tracks(count: int) -> Callable[[Path], None]:
    """A film beside many sounds, of which each says one sample."""

    def make(path: Path) -> None:
        plain = path.with_stem("plain")
        write_video(plain, (60,))
        with av.open(str(plain)) as source, written(path) as container:
            picture = container.add_stream_from_template(source.streams.video[0])
            sounds = [container.add_stream("pcm_s16le", rate=8000) for _ in range(count)]
            for sound in sounds:
                frame = av.AudioFrame.from_ndarray(np.zeros((1, 80), np.int16), "s16", "mono")
                frame.sample_rate, frame.pts, frame.time_base = 8000, 0, Fraction(1, 8000)
                container.mux(sound.encode(frame))
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = picture
                    container.mux(packet)
        plain.unlink()

    return make


def subtitles(path: Path) -> None:
    """A hundred thousand texts, all shown at once for ten hours."""
    plain, words = path.with_stem("plain"), path.with_suffix(".srt")
    write_video(plain, (60,))
    words.write_text("1\n00:00:00,000 --> 10:00:00,000\nx\n")
    with av.open(str(plain)) as source, av.open(str(words)) as text, written(path) as container:
        picture = container.add_stream_from_template(source.streams.video[0])
        subtitle = container.add_stream_from_template(text.streams.subtitles[0])
        for _ in range(100_000):
            packet = Packet(b"x" * 40)
            packet.stream, packet.time_base = subtitle, Fraction(1, 1000)
            packet.pts = packet.dts = 0
            packet.duration = 36_000_000
            container.mux_one(packet)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = picture
                container.mux(packet)
    plain.unlink()
    words.unlink()


def header(text: str, picture_bytes: int) -> Callable[[Path], object]:
    """Raw pictures (YUV4MPEG2) behind a header that lies."""
    return lambda path: path.write_bytes(
        f"YUV4MPEG2 {text}\n".encode() + (b"FRAME\n" + bytes(picture_bytes)) * 60
    )


def timescale(ticks: int) -> Callable[[Path], None]:
    """An MP4 whose ticks last another time than they did."""

    def make(path: Path) -> None:
        write_video(path, (100,))
        data = bytearray(path.read_bytes())
        at = data.index(b"mdhd") + 16
        data[at : at + 4] = ticks.to_bytes(4, "big")
        path.write_bytes(data)

    return make


def tags(path: Path) -> None:
    """Twenty megabytes of titles."""
    write_video(path, (60,), metadata={"title": "x" * 10_000_000, "comment": "y" * 10_000_000})


@contextmanager
def written(path: Path) -> Iterator[OutputContainer]:
    """A file to be written."""
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        yield container


FILMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a hole of 60 s": ("mp4", stamped(lambda n: 60 if n == 50 else 0.04)),
    "a hole of 60 s without durations": ("mkv", stamped(lambda n: 60 if n == 50 else 0.04)),
    "a hole of five hours": ("mp4", stamped(lambda n: 5 * _HOUR_S if n == 50 else 0.04)),
    "a hole of five hours, 1080p": (
        "mp4",
        stamped(lambda n: 5 * _HOUR_S if n == 50 else 0.04, size=(1920, 1080)),
    ),
    "a hole of 4.9 s behind four of five frames": (
        "mp4",
        stamped(lambda n: 4.9 if n % 5 else 1 / 60, frames=1000),
    ),
    "a hole of 59 s behind four of five frames": (
        "mp4",
        stamped(lambda n: 59.0 if n % 5 else 1 / 60, frames=300),
    ),
    "100 pictures, one in three minutes": ("mp4", stamped(lambda n: 180.0)),
    "a clock of 100,000 frames a second": ("mp4", lambda path: write_video(path, (2000,), rate=100_000)),
    "a picture of 4320p, repeated by one byte": ("webm", repeats((8192, 4320), 2000)),
    "a picture of 720p, repeated for an hour": ("webm", repeats((1280, 720), 108_000)),
    "another size with every frame": ("mkv", changing_size),
    "a million pixels wide": ("y4m", header("W1000000 H16 F25:1", 1 << 10)),
    "a rate of 2,000,000,000": ("y4m", header("W160 H128 F2000000000:1", 160 * 128 * 3 // 2)),
    "a rate of -25": ("y4m", header("W160 H128 F-25:1", 160 * 128 * 3 // 2)),
    "one tick a second": ("mp4", timescale(1)),
    "4,294,967,295 ticks a second": ("mp4", timescale(2**32 - 1)),
    "no ticks a second": ("mp4", timescale(0)),
    "990 sounds": ("mkv", tracks(990)),  # FFmpeg opens no file of more than 1,000 streams
    "100,000 subtitles": ("mkv", subtitles),
    "20 MB of titles": ("mkv", tags),
}


def curate(film: Path, out: Path, tree: Path, limit_s: float) -> Spent:
    """Curates a film in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CURATE, str(film), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(limit_s), int(limit_s)))
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    outcome, size = _outcome(printed)
    if process.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        outcome = "does not end"
    cpu_s = used.ru_utime + used.ru_stime
    return Spent(cpu_s, size, outcome)


def _outcome(printed: str) -> tuple[str, int]:
    found = re.search(r"^ROWS(.*)$", printed, re.M)
    if found is None:
        return "dies", 0
    rows = json.loads(found[1])
    kept_s = sum(seconds for state, _, _, seconds, _ in rows if state == "kept")
    states = [f"{sum(row[0] == 'kept' for row in rows)} kept, {kept_s:.1f} s"] if kept_s else []
    reasons = {f"{state} ({stage}): {reason}": None for state, stage, reason, _, _ in rows if reason}
    return "; ".join([*states, *list(reasons)[:2]]), sum(row[4] for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="checkout of another version")
    parser.add_argument("--only", default="", help="regular expression over names")
    parser.add_argument("--limit-s", type=float, default=120.0)
    options = parser.parse_args(arguments)
    print(
        "| film | bytes in | before: s | bytes out | now: s | bytes out | what becomes of it |\n"
        "|---|--:|--:|--:|--:|--:|---|"
    )
    for name, (suffix, make) in FILMS.items():
        if not re.search(options.only, name):
            continue
        with tempfile.TemporaryDirectory(prefix="reelweave-hostile-") as scratch:
            film = Path(scratch) / f"film.{suffix}"
            make(film)
            cells = [name, f"{film.stat().st_size:,}"]
            for number, tree in enumerate([options.tree, _REPO]):
                if tree is None:
                    cells += ["-", "-"]
                    continue
                spent = curate(film, Path(scratch) / str(number), tree.resolve(), options.limit_s)
                more = "> " if spent.outcome == "does not end" else ""
                cells += [f"{more}{spent.cpu_s:.1f}", f"{spent.out_bytes:,}"]
            print("| " + " | ".join([*cells, spent.outcome]) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
