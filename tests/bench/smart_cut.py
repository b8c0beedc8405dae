"""Smart cuts beside encoded ones: the same spans, copied frames bit for bit, readers, processor time.

python -m tests.bench.smart_cut films FILES...       time and bytes of a whole pass in both modes, by turns
python -m tests.bench.smart_cut frames FILES...      every frame of every clip, in every reader
python -m tests.bench.smart_cut loader FILES...      what windows of the clips cost the loader
python -m tests.bench.smart_cut edges FILES...       how near encoded frames of both modes are to the source
python -m tests.bench.smart_cut encoders             every frame of numbered films of many settings of x264
python -m tests.bench.smart_cut x265                 and of x265
"""

import hashlib
import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from reelweave.curate.frames.source import open_video
from reelweave.loader.dataset.samples.frames.shown_frames import read_told
from reelweave.loader.dataset.samples.frames.video_stream import open_clip
from reelweave.loader.read.decode import decode_with_pyav
from tests.clip_readers import READERS, faults
from tests.cutting import curated, cut_smart, pictures
from tests.media import read_number, read_numbers, write_video

ROUNDS = 2
STRIDE = 15  # frames between those that readers seek to
MODES, KINDS = ("encode", "smart"), ("first", "middle")
WINDOW = 16


def curated_in(path: Path, mode: str) -> tuple[list, float]:
    with tempfile.TemporaryDirectory() as out:
        began_s = time.process_time()
        found = curated(path, Path(out), cut={"mode": mode, "max_bits": max_bits_of(path)})
        return found, time.process_time() - began_s


def max_bits_of(path: Path) -> int:
    """10 for films of HEVC, whose packets are copied then."""
    with av.open(str(path)) as container:
        return 10 if container.streams.video[0].codec_context.codec.canonical_name == "hevc" else 8


def copied_of(reason: str) -> tuple[int, int]:
    """Frames copied and frames of a clip, by the words of its record."""
    words = next((part for part in reason.split("; ") if part.startswith("smart: ")), None)
    if words is None:
        return 0, 0
    copied, _, frames, *_ = words.removeprefix("smart: ").split()[:4]
    return int(copied), int(frames)


def measure(paths: list[Path]) -> None:
    print("| film | clips | smart | frames copied | encode s | smart s | ratio | MB, encode -> smart |")
    print("|---|---|---|---|---|---|---|---|")
    totals = np.zeros(4)
    for path in paths:
        seconds: dict[str, list[float]] = {"encode": [], "smart": []}
        kept: dict[str, list] = {}
        for round_number in range(ROUNDS):
            for mode in ("encode", "smart") if round_number % 2 else ("smart", "encode"):
                found, spent_s = curated_in(path, mode)
                seconds[mode].append(spent_s)
                kept[mode] = [record for record, _ in found if record.state == "kept"]
        encode_s, smart_s = (statistics.median(seconds[mode]) for mode in ("encode", "smart"))
        megabytes = [sum(record.clip_bytes for record in kept[mode]) / 1e6 for mode in ("encode", "smart")]
        copied = sum(copied_of(record.reason)[0] for record in kept["smart"])
        frames = sum(record.frames for record in kept["smart"])
        smart = sum("smart: " in record.reason for record in kept["smart"])
        totals += (encode_s, smart_s, *megabytes)
        print(
            f"| {path.stem} | {len(kept['smart'])} | {smart} | {copied / max(frames, 1):.0%} of {frames} |"
            f" {encode_s:.2f} | {smart_s:.2f} | {smart_s / encode_s:.2f} |"
            f" {megabytes[0]:.2f} -> {megabytes[1]:.2f} |",
            flush=True,
        )
    print(
        f"| all | | | | {totals[0]:.1f} | {totals[1]:.1f} | {totals[1] / totals[0]:.2f} |"
        f" {totals[2]:.1f} -> {totals[3]:.1f} |"
    )


def compare(paths: list[Path]) -> int:
    print("| film | clips | smart | frames copied | encoded whole | differ |")
    print("|---|---|---|---|---|---|")
    wrong: list[str] = []
    reasons: Counter[str] = Counter()
    totals = np.zeros(4, int)
    for path in paths:
        try:
            counts, whys, differ = _compare_film(path)
        except (
            ValueError,
            OSError,
            AssertionError,
            subprocess.CalledProcessError,
        ) as error:  # as FFmpeg's are
            counts, whys, differ = np.zeros(4, int), Counter(), [f"{path.name}: not compared: {error!r:.200}"]
        clips, smart, frames, copied = counts
        totals, reasons, wrong = totals + counts, reasons + whys, wrong + differ
        words = "; ".join(f"{count} {reason}" for reason, count in sorted(whys.items()))
        print(
            f"| {path.stem} | {clips} | {smart} | {copied} of {frames} | {words} | {len(differ)} |",
            flush=True,
        )
    clips, smart, frames, copied = totals
    print(
        f"{clips} clips, {smart} smart, {frames} frames, {copied} copied, {len(wrong)} differ",
        *wrong,
        sep="\n",
    )
    print(*(f"{count} {reason}" for reason, count in reasons.most_common()), sep="\n")
    return bool(wrong)


def _compare_film(path: Path) -> tuple[np.ndarray, Counter[str], list[str]]:
    """Clips, smart ones, frames and copied frames of a film, its reasons against copies, and what differs."""
    (encoded, _), (smart, _) = curated_in(path, "encode"), curated_in(path, "smart")
    spans = [[(r.start_s, r.end_s, r.state, r.frames) for r, _ in found] for found in (encoded, smart)]
    wrong = [] if spans[0] == spans[1] else [f"{path.name}: other spans"]
    counts, reasons, whole = np.zeros(4, int), Counter[str](), _digests(path)
    kept = [(record, data) for record, data in smart if record.state == "kept"]
    for record, data in kept:
        copied, _ = copied_of(record.reason)
        counts += (1, copied > 0, record.frames, copied)
        if not copied:
            reasons[record.reason.rpartition("encoded: ")[2]] += 1
            continue
        equal = sum(digest in whole for digest in map(_digest, pictures(data)))
        if equal < copied:
            wrong.append(f"{path.name} {record.start_s:.1f} s: {copied - equal} copied frames are not equal")
        for name in READERS:
            wrong += [
                f"{path.name} {record.start_s:.1f} s, {name}: {fault}" for fault in faults(data, name, STRIDE)
            ]
    return counts, reasons, wrong


def measure_windows(paths: list[Path]) -> None:
    """What the loader pays for windows of 16 frames of the same spans in both modes."""
    print(
        "| film | clips | frames between key frames, encode -> smart | first ms | middle ms |"
        " of it times and key frames, ms |"
    )
    print("|---|---|---|---|---|---|")
    for path in paths:
        found = {
            mode: [pair for pair in curated_in(path, mode)[0] if pair[0].state == "kept"] for mode in MODES
        }
        pairs = [
            {"encode": encoded, "smart": smart}
            for (_, encoded), (record, smart) in zip(found["encode"], found["smart"], strict=True)
            if "smart: " in record.reason and record.frames > 2 * WINDOW
        ]
        spent = {
            (mode, kind): [window_s(pair[mode], kind) for pair in pairs] for mode in MODES for kind in KINDS
        }
        cells = [
            " -> ".join(f"{1e3 * statistics.mean(spent[mode, kind]):.1f}" for mode in MODES) for kind in KINDS
        ]
        apart = " -> ".join(
            f"{statistics.mean(key_distance(pair[mode]) for pair in pairs):.0f}" for mode in MODES
        )
        told = " -> ".join(
            f"{1e3 * statistics.mean(told_s(pair[mode]) for pair in pairs):.2f}" for mode in MODES
        )
        print(f"| {path.stem} | {len(pairs)} | {apart} | {cells[0]} | {cells[1]} | {told} |", flush=True)


def told_s(data: bytes) -> float:
    """Mean processor seconds in which the loader reads times and key frames of a clip, of a file that is open."""
    spent_s = []
    for _ in range(6):
        with open_clip(data) as (container, stream):
            began_s = time.process_time()
            read_told(container, stream)
            spent_s.append(time.process_time() - began_s)
    return statistics.mean(spent_s)


def key_distance(data: bytes) -> float:
    """Mean number of frames of a group of pictures."""
    with av.open(io.BytesIO(data)) as container:
        keys = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    return len(keys) / sum(keys)


def window_s(data: bytes, kind: str) -> float:
    """Mean processor seconds of reading a window of a clip."""
    with av.open(io.BytesIO(data)) as container:
        frames = container.streams.video[0].frames
    starts = (
        np.random.default_rng(0).integers(1, frames - WINDOW, 6).tolist() if kind == "middle" else [0] * 3
    )
    video = np.zeros((3, WINDOW, 256, 256), np.uint8)
    began_s = time.process_time()
    for first in starts:
        decode_with_pyav(data, np.arange(first, first + WINDOW), video)
    return (time.process_time() - began_s) / len(starts)


def measure_edges(paths: list[Path]) -> None:
    """PSNR of the luma of frames that smart cuts encode, and of the same frames in encoded clips."""
    print(
        "| film | frames encoded beside copies | PSNR in encode, dB | in smart | lowest in encode | in smart |"
    )
    print("|---|---|---|---|---|---|")
    for path in paths:
        found = {
            mode: [pair for pair in curated_in(path, mode)[0] if pair[0].state == "kept"] for mode in MODES
        }
        with path.open("rb") as file, open_video(file) as (container, stream):
            source = [frame.to_ndarray()[: frame.height] for frame in container.decode(stream)]
        values: dict[str, list[float]] = {mode: [] for mode in MODES}
        for (_, encoded), (record, smart) in zip(found["encode"], found["smart"], strict=True):
            if "smart: " not in record.reason:
                continue
            first = round(record.start_s * record.fps)
            for at, (frame, other) in enumerate(zip(pictures(smart), pictures(encoded), strict=True), first):
                rows = len(source[at])
                if not np.array_equal(frame[:rows], source[at]):
                    values["smart"].append(psnr(frame[:rows], source[at]))
                    values["encode"].append(psnr(other[:rows], source[at]))
        if values["smart"]:
            means = [f"{statistics.mean(values[mode]):.2f}" for mode in MODES]
            lowest = [f"{min(values[mode]):.2f}" for mode in MODES]
            print(f"| {path.stem} | {len(values['smart'])} | {' | '.join([*means, *lowest])} |", flush=True)


def psnr(picture: np.ndarray, true: np.ndarray) -> float:
    squared = float(((picture.astype(np.float64) - true) ** 2).mean())
    peak = 255 if true.dtype == np.uint8 else 1023
    return float(10 * np.log10(peak**2 / max(squared, 1e-4)))


PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
TUNES = ("film", "animation", "grain", "stillimage", "fastdecode", "zerolatency")
PARAMS = (
    "open-gop=1:bframes=3",
    "open-gop=1:bframes=8:b-adapt=0:keyint=30:min-keyint=5",
    "intra-refresh=1",
    "b-pyramid=none:bframes=3",
    "b-pyramid=strict:bframes=6:b-adapt=0",
    "bframes=16:b-adapt=0:ref=16",
    "bframes=0:ref=16",
    "cabac=0:8x8dct=0:bframes=2",
    "weightp=2:weightb=1:bframes=3",
    "slices=4",
    "slice-max-size=300",
    "nal-hrd=vbr:vbv-maxrate=4000:vbv-bufsize=4000",
    "nal-hrd=cbr:bitrate=900:vbv-maxrate=900:vbv-bufsize=900:filler=1",
    "repeat-headers=1:aud=1",
    "sps-id=0:stitchable=1",
    "sps-id=31",
    "constrained-intra=1",
    "bluray-compat=1:level=4.1:vbv-maxrate=9000:vbv-bufsize=9000:slices=4",
    "keyint=infinite:scenecut=60",
    "keyint=9:min-keyint=9:scenecut=0:bframes=5",
    "pic-struct=1:bframes=2",
    "direct=temporal:bframes=4",
    "direct=spatial:bframes=4:ref=6",
    "qp=0",
    "interlaced=1",
    "fake-interlaced=1",
    "frame-packing=3",
    "opencl=0:rc-lookahead=60:bframes=3:keyint=50",
)
HEVC_PARAMS = (
    "open-gop=1:bframes=4:b-adapt=0",
    "open-gop=0:bframes=4:b-adapt=0",
    "open-gop=0:radl=2:bframes=4:b-adapt=0",
    "open-gop=1:bframes=8:b-adapt=0:rc-lookahead=20:ref=5",
    "open-gop=1:bframes=2:b-pyramid=0",
    "bframes=0:ref=5",
    "open-gop=1:ctu=16:min-cu-size=8:pools=1:wpp=1:slices=3",
    "open-gop=1:ctu=64:pools=1:wpp=1",
    "open-gop=0:temporal-layers=3",
    "open-gop=1:repeat-headers=1:aud=1:hrd=1:vbv-maxrate=3000:vbv-bufsize=3000",
    "open-gop=1:hash=1",
    "open-gop=1:lossless=1",
    "open-gop=1:scaling-list=default:weightb=1:weightp=1",
    "open-gop=1:tskip=1:cu-lossless=1",
    "open-gop=1:constrained-intra=1:sao=0:deblock=0",
    "open-gop=1:amp=1:rect=1:limit-modes=0",
    "open-gop=1:keyint=100:scenecut=60",
    "open-gop=0:keyint=9:min-keyint=9:scenecut=0:bframes=5",
    "intra-refresh=1",
    "open-gop=1:display-window=2,2,2,2",
    "open-gop=1:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:hdr10=1:chromaloc=2:max-cll=1000,400",
    "open-gop=1:transfer=arib-std-b67:colorprim=bt2020:colormatrix=bt2020nc",
)
HEVC_CONTAINERS = ("mp4", "mkv", "ts", "mov")
CONTAINERS = ("mp4", "mkv", "ts", "mov", "avi", "flv")
SPANS = ((7, 60), (61, 93))


def encode_variants() -> Iterator[tuple[str, Path]]:
    """Yield numbered films of every setting, the containers by turns, with their names."""
    settings = [({"preset": preset, "g": "25"}, preset) for preset in PRESETS]
    settings += [({"tune": tune, "g": "25"}, tune) for tune in TUNES]
    settings += [({"g": "25", "x264-params": f"mbtree=0:{params}"}, params) for params in PARAMS]
    for number, (options, name) in enumerate(settings):
        with tempfile.TemporaryDirectory() as folder:
            suffix = CONTAINERS[number % len(CONTAINERS)]
            yield f"{name} ({suffix})", write_video(Path(folder) / f"a.{suffix}", (40, 60), options=options)


def encode_hevc_variants() -> Iterator[tuple[str, Path]]:
    """Yield the same of x265, by turns of 10 and 8 bits."""
    usual = "log-level=none:pools=none:frame-threads=1:wpp=0:keyint=25"
    settings = [({"preset": preset, "x265-params": usual}, preset) for preset in PRESETS[:-1]]
    settings += [
        ({"preset": "superfast", "x265-params": f"{usual}:{params}"}, params) for params in HEVC_PARAMS
    ]
    for number, (options, name) in enumerate(settings):
        with tempfile.TemporaryDirectory() as folder:
            suffix = HEVC_CONTAINERS[number % len(HEVC_CONTAINERS)]
            form = "yuv420p" if number % 3 == 2 else "yuv420p10le"
            path = Path(folder) / f"a.{suffix}"
            kind = {"codec": "libx265", "pix_fmt": form, "size": (160, 256)}
            yield f"{name} ({suffix}, {form})", write_video(path, (40, 60), options=options, **kind)


def sweep(variants: Iterator[tuple[str, Path]], max_bits: int) -> int:
    wrong: list[str] = []
    clips = smart_clips = copied = 0
    for name, path in variants:
        found = cut_smart(path, SPANS, max_bits=max_bits)
        for clip, (first, last) in zip(found, SPANS, strict=True):
            clips += 1
            copied_frames, _ = copied_of(clip.remark)
            smart_clips, copied = smart_clips + bool(copied_frames), copied + copied_frames
            if read_numbers(clip.data) != list(range(first, last)):
                wrong.append(f"{name}: other frames")
            wrong += [
                f"{name}, {reader}: {fault}" for reader in READERS for fault in faults(clip.data, reader, 4)
            ]
            wrong += [f"{name}: loader, window at {at}" for at in _wrong_windows(clip.data, first, last)]
        print(f"{name}: {[clip.remark for clip in found]}", flush=True)
    print(
        f"{clips} clips, {smart_clips} smart, {copied} frames copied, {len(wrong)} differ", *wrong, sep="\n"
    )
    return bool(wrong)


def _wrong_windows(data: bytes, first: int, last: int) -> list[int]:
    """First frames of windows of five that the loader reads otherwise."""
    wrong = []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        size = stream.height, stream.width
    for at in range(0, last - first - 5, 7):
        video = np.zeros((3, 5, *size), np.uint8)
        decode_with_pyav(data, np.arange(at, at + 5), video)
        shown = [read_number(video[:, frame].transpose(1, 2, 0)) - first for frame in range(5)]
        wrong += [at] if shown != list(range(at, at + 5)) else []
    return wrong


def _digest(picture: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(picture), digest_size=16).digest()


def _digests(path: Path) -> set[bytes]:
    with path.open("rb") as file, open_video(file) as (container, stream):
        return {_digest(frame.to_ndarray()) for frame in container.decode(stream)}


if __name__ == "__main__":
    films = [Path(name) for name in sys.argv[2:]]
    commands = {
        "films": lambda: measure(films),
        "frames": lambda: compare(films),
        "loader": lambda: measure_windows(films),
        "edges": lambda: measure_edges(films),
        "encoders": lambda: sweep(encode_variants(), 8),
        "x265": lambda: sweep(encode_hevc_variants(), 10),
    }
    sys.exit(commands[sys.argv[1]]())
