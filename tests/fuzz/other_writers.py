"""Films written again by others than FFmpeg's program: mkvmerge, GStreamer, PyAV with edited stamps, moved bytes."""

import io
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from tests.fuzz.moved_bytes import move_bytes

LIMIT_S = 10


@dataclass(frozen=True)
class Source:
    """Film to write again.

    Attributes:
        path: The film.
        codec: Encoder of its pictures, and ``sound`` that of its sound, or "".
        more: Writes a second film like it to a path, and returns whether it could.
    """

    path: Path
    codec: str
    sound: str
    more: Callable[[Path], bool]


@dataclass(frozen=True)
class Written:
    """What a program did: its words, and the film; None where it refused, or is not installed."""

    words: str
    path: Path | None


def rewrite(rng: random.Random, source: Source, stem: Path) -> tuple[str, Written]:
    """Write a film by a program drawn at random, to a path with this stem; return the program's name, too."""
    name = rng.choice(list(WRITERS))
    return name, WRITERS[name](rng, source, stem)


def _run(program: str, words: Sequence[str], allowed: Sequence[int] = (0,)) -> str:
    """Run a program; return what went wrong, or ""."""
    if shutil.which(program) is None:
        return f"{program} is not installed"
    try:
        done = subprocess.run([program, *words], capture_output=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"{program} hangs"
    return "" if done.returncode in allowed else f"{program} refuses"


# mkvmerge: options of the film, of the whole, and what becomes of the first file.
TRACKS = (
    "", "", "", "--sync 0:300", "--sync 1:-200", "--sync 1:150", "--sync 0:0,25/24 --sync 1:0,25/24",
    "--default-duration 0:20fps", "--default-duration 0:30fps --fix-bitstream-timing-information 0",
    "--cropping 0:4,2,4,2", "--compression 0:zlib", "--no-audio", "--timestamps 0:STAMPS",
)  # fmt: skip
WHOLE = (
    "", "", "--no-cues", "--timestamp-scale 100000", "--cluster-length 200ms", "--engage no_simpleblocks",
    "--disable-lacing", "--timestamp-scale 20000000", "--engage no_cue_duration",
)  # fmt: skip
CUTS = ("", "", "", "append", "--split parts:1s-4s", "--split parts:0.5s-2s,+3s-5s", "--split duration:2s")


def by_mkvmerge(rng: random.Random, source: Source, stem: Path) -> Written:
    """Join, cut or move a film by mkvmerge."""
    track, whole, cut = rng.choice(TRACKS), rng.choice(WHOLE), rng.choice(CUTS)
    if "STAMPS" in track:
        stamps, at_ms = stem.with_suffix(".stamps"), 0.0
        lines = [f"{(at_ms := at_ms + rng.choice((20, 40, 40, 65))):.3f}" for _ in range(400)]
        stamps.write_text("\n".join(["# timestamp format v2", "0", *lines]))
        track = track.replace("STAMPS", str(stamps))
    second = stem.with_name(f"{stem.name}-more{source.path.suffix}")
    joined = cut == "append" and source.more(second)
    out = stem.with_suffix(".mkv")
    words = [*whole.split(), "-o", str(out), *track.split(), str(source.path)]
    words += ["+", str(second)] if joined else cut.split() if cut != "append" else []
    wrong = _run("mkvmerge", words, (0, 1))
    made = sorted(stem.parent.glob(f"{stem.name}-0*.mkv")) or [out]
    said = " ".join(["mkvmerge", *words]).replace(f"{stem.parent}/", "")
    return Written(wrong or said, None if wrong or not made[0].exists() else rng.choice(made))


PARSERS = {
    "libx264": "h264parse", "libx265": "h265parse", "mpeg2video": "mpegvideoparse", "mpeg4": "mpeg4videoparse",
    "libvpx-vp9": "vp9parse", "libsvtav1": "av1parse", "mjpeg": "jpegparse", "flv": "video/x-flash-video",
    "aac": "aacparse", "libmp3lame": "mpegaudioparse", "mp2": "mpegaudioparse", "ac3": "ac3parse",
    "libopus": "opusparse", "libvorbis": "vorbisparse", "flac": "flacparse", "pcm_s16le": "audio/x-raw",
}  # fmt: skip
GST_MUXERS = (
    ("mp4", "mp4mux", "libx264 libx265 mpeg4 libvpx-vp9 libsvtav1", "aac libmp3lame ac3 libopus", (
        "", "faststart=true", "fragment-duration=500", "fragment-duration=1000 streamable=true", "trak-timescale=1000",
        "fragment-duration=700 fragment-mode=first-moov-then-finalise", "interleave-time=2000000000")),
    ("mov", "qtmux", "libx264 libx265 mpeg4 mjpeg", "aac libmp3lame ac3 pcm_s16le", (
        "", "fragment-duration=500", "reserved-max-duration=20000000000 reserved-moov-update-period=1000000000")),
    ("mkv", "matroskamux", " ".join(PARSERS), " ".join(PARSERS), (
        "", "streamable=true", "offset-to-zero=true", "timecodescale=100000", "min-index-interval=2000000000")),
    ("ts", "mpegtsmux", "libx264 libx265 mpeg2video mpeg4", "aac libmp3lame ac3 libopus mp2", ("", "alignment=7")),
    ("flv", "flvmux", "libx264", "aac libmp3lame", ("", "streamable=true")),
    ("avi", "avimux", "libx264 mpeg4 mjpeg", "libmp3lame pcm_s16le", ("",)),
)  # fmt: skip
QUEUE = "queue max-size-time=0 max-size-bytes=0 max-size-buffers=0"  # one that is full waits for ever
BRANCHES = ("", "", "", "identity eos-after=60 !", "identity drop-buffer-flags=delta-unit !")


def by_gstreamer(rng: random.Random, source: Source, stem: Path) -> Written:
    """Copy a film's packets by GStreamer's parsers and muxers, some without the end or all but key frames."""
    holds = [
        one for one in GST_MUXERS
        if source.codec in one[2].split() and (not source.sound or source.sound in one[3].split())
    ]  # fmt: skip
    if not holds:
        return Written(f"GStreamer does not hold {source.codec} and {source.sound}", None)
    suffix, muxer, _, _, options = rng.choice(holds)
    out = stem.with_suffix(f".{suffix}")
    said = f"parsebin name=p {muxer} name=m {rng.choice(options)} ! filesink location={out}"
    said += f" p. ! {PARSERS[source.codec]} ! {rng.choice(BRANCHES)} {QUEUE} ! m."
    if source.sound:
        said += f" p. ! {PARSERS[source.sound]} ! {rng.choice(('', '', '', 'identity eos-after=90 !'))} {QUEUE} ! m."
    wrong = _run("gst-launch-1.0", ["-q", "filesrc", f"location={source.path}", "!", *said.split()])
    is_made = not wrong and out.stat().st_size > 1000
    said = f"gst-launch-1.0 filesrc location={source.path} ! {said}".replace(f"{stem.parent}/", "")
    return Written(wrong or said, out if is_made else None)


AV_MUXERS = (
    ("mp4", ""), ("mp4", "hybrid_fragmented"), ("mp4", "hybrid_fragmented unfinished"), ("mkv", ""), ("ts", ""),
    ("mp4", "frag_every_frame+empty_moov"), ("mp4", "cmaf+frag_keyframe+delay_moov"), ("mov", "hybrid_fragmented"),
    ("mp4", "frag_keyframe+empty_moov+default_base_moof"), ("mp4", "negative_cts_offsets"), ("flv", ""), ("avi", ""),
)  # fmt: skip
EDITS = (
    "none",
    "jitter",
    "one late",
    "squeeze",
    "gap",
    "step back",
    "durations",
    "lost",
    "twice",
    "sound late",
)


def by_pyav(rng: random.Random, source: Source, stem: Path) -> Written:
    """Copy a film's packets by PyAV's FFmpeg, some with other stamps; an unfinished film lacks what closing writes."""
    suffix, flags = rng.choice(AV_MUXERS)
    edit, at, seed = rng.choice(EDITS), rng.randrange(20, 90), rng.random()
    is_unfinished = "unfinished" in flags
    out = stem.with_suffix(f".{suffix}")
    options = {"movflags": flags.split()[0]} if flags else {}
    said, written = f"PyAV {suffix} {flags}, {edit} at packet {at}", io.BytesIO()
    try:
        with av.open(str(source.path)) as film, av.open(
            written, "w", format={"mkv": "matroska", "ts": "mpegts"}.get(suffix, suffix), options=options
        ) as target:  # fmt: skip
            streams = {stream.index: target.add_stream_from_template(stream) for stream in film.streams}
            for packet in _edited(film, edit, at, random.Random(seed)):
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
            if is_unfinished:
                out.write_bytes(written.getvalue())
    except (av.error.FFmpegError, ValueError, OSError):
        return Written(f"{said}: FFmpeg refuses", None)
    if not is_unfinished:
        out.write_bytes(written.getvalue())
    return Written(said, out if out.stat().st_size > 1000 else None)


def _edited(
    film: av.container.InputContainer, edit: str, at: int, rng: random.Random
) -> list["av.Packet[Any]"]:
    """Packets of a film with some of their stamps moved; ``at`` counts packets of pictures."""
    found, seen, from_s, stepped = list[Any](), 0, float("inf"), 0
    for packet in film.demux():
        if packet.dts is None:
            continue
        stream, second = packet.stream, 1 / packet.time_base
        is_video = stream.type == "video"
        frame = round(second / (stream.average_rate or 25)) if is_video else packet.duration or 0
        at_s = float(packet.dts * packet.time_base)
        if is_video and seen == at:
            from_s = at_s
        seen += is_video
        moved_s = 0.0
        match edit:
            case "jitter" if is_video and packet.pts is not None:
                packet.pts += round(frame * rng.uniform(-0.2, 0.2))
                packet.dts -= round(0.3 * frame)
            case "one late" if is_video and seen == at and packet.pts is not None:
                packet.pts += round(2.5 * frame)
            case "squeeze" if is_video and at < seen <= at + 10 and packet.pts is not None:
                stepped = packet.dts if seen == at + 1 else stepped + 1
                packet.pts, packet.dts = max(packet.pts, stepped), stepped
            case "gap" | "step back" if at_s >= from_s:
                moved_s = 0.7 if edit == "gap" else -0.5
            case "sound late" if not is_video:
                moved_s = 0.2
            case "durations" if is_video:
                packet.duration = rng.choice((0, 1, frame, 3 * frame))
            case "lost" if is_video and at < seen <= at + 5:
                continue
        packet.dts += round(moved_s * second)
        if packet.pts is not None:
            packet.pts += round(moved_s * second)
        found.append(packet)
        if edit == "twice" and is_video and seen == at:
            again = av.Packet(bytes(packet))
            again.pts, again.dts, again.time_base, again.stream = (
                (packet.pts or 0) + 1, packet.dts + 1, packet.time_base, packet.stream,
            )  # fmt: skip
            found.append(again)
    return found


def by_hand(rng: random.Random, source: Source, stem: Path) -> Written:
    """Remove, repeat, swap or zero fragments, clusters or packets of a film's bytes."""
    data, said = move_bytes(rng, source.path.read_bytes(), source.path.suffix)
    if data is None:
        return Written(said, None)
    out = stem.with_suffix(source.path.suffix)
    out.write_bytes(data)
    return Written(said, out)


WRITERS: dict[str, Callable[[random.Random, Source, Path], Written]] = {
    "mkvmerge": by_mkvmerge,
    "GStreamer": by_gstreamer,
    "PyAV": by_pyav,
    "bytes": by_hand,
}
