"""What copied and 10-bit clips are worth: the share of spans that can be copied, bytes, time and errors of the clips.

    python -m tests.bench.fidelity VIDEO... [--trims 0 0.5 1 2] [--max-bits 8]

Copies: each source is decoded once; for each `cut.trim_s` its spans are trimmed and copied. For one of them (--encoded)
the same spans are encoded with the default settings, too: processor seconds of both, their bytes, and the error of
encoded luma against copied luma in every tenth frame of two clips of each source.

Depth: sources of more than 8 bits or of HDR are cut with `cut.max_bits` 8 and 10: processor seconds and bytes, and the
error of luma against the source's own samples, scaled to 8 bits, where both are of one transfer.
"""

import argparse
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
from av.video.frame import VideoFrame

from reelweave.curate.config import CurateConfig
from reelweave.curate.cut import CutClip, CutConfig, FailedClip, cut
from reelweave.curate.cut.trim import trimmed
from reelweave.curate.frames.source import SourceError
from reelweave.curate.shots.spans import Span, spans
from reelweave.curate.source_pass.scan import Scan, scan
from reelweave.loader.dataset.colour.sdr import is_hdr

_EVERY = 10  # frames between compared ones
_COMPARED = 2  # clips of a source
_LEAST_S = 1e-9  # notes packets, and trims nothing


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each `cut.trim_s`, one of encoding the copied spans, and one of deep sources, as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--trims", nargs="+", type=float, default=[0, 0.5, 1, 2])
    parser.add_argument("--max-bits", type=int, choices=(8, 10), default=8)
    parser.add_argument("--encoded", type=float, default=1)
    options = parser.parse_args(arguments)
    rows: dict[str, Counter[str]] = {}
    faults: Counter[str] = Counter()
    for path in options.videos:
        try:
            with path.open("rb") as file:
                _copies(file, options, rows, faults)
                _depth(path, file, rows)
        except SourceError as error:
            print(f"{path}: {error}", file=sys.stderr)
    for name, row in rows.items():
        if row["compared"]:
            row["mean_psnr_dB"] /= row["compared"]
        print(json.dumps({"what": name, **{key: round(float(value), 2) for key, value in row.items()}}))
    print(json.dumps({"what": "not copied without trimming", **dict(faults.most_common())}))
    return 0


def _copies(
    file: BinaryIO,
    options: argparse.Namespace,
    rows: dict[str, Counter[str]],
    faults: Counter[str],
) -> None:
    config = CurateConfig.model_validate(
        {"cut": {"mode": "copy", "trim_s": _LEAST_S, "max_bits": options.max_bits}}
    ).source_stage()
    with scan(file, config) as seen:
        parts = spans(seen.timeline, seen.transitions, seen.probe.promised_s, config.spans)
        for trim_s in options.trims:
            own = CutConfig(mode="copy", trim_s=max(trim_s, _LEAST_S), max_bits=options.max_bits)
            shorter = list(parts)
            if seen.packets is not None:
                shorter = trimmed(
                    parts, seen.packets, seen.begin_pts, seen.timeline, seen.size, own, config.spans
                )
            wanted = [span for span in shorter if span.fault is None]
            copied, copy_s = _timed(file, seen, wanted, own)
            good = [clip for clip in copied if isinstance(clip, CutClip)]
            row = rows.setdefault(f"trim {trim_s:g}", Counter())
            row["spans"] += len(wanted)
            row["seconds"] += _seconds(span for span in parts if span.fault is None)
            row["copied"] += len(good)
            row["copied_s"] += _seconds(clip.span for clip in good)
            row["lost_s"] += _seconds(span for span in shorter if "cut.trim_s" in (span.fault or ""))
            if trim_s == min(options.trims):
                faults.update(clip.reason for clip in copied if isinstance(clip, FailedClip))
            if trim_s == options.encoded and good:
                _encoded(file, seen, good, copy_s, rows.setdefault("encoded", Counter()))


def _encoded(file: BinaryIO, seen: Scan, copied: Sequence[CutClip], copy_s: float, row: Counter[str]) -> None:
    clips, encode_s = _timed(file, seen, [clip.span for clip in copied], CutConfig())
    row["seconds"] += _seconds(clip.span for clip in copied)
    row["copy_cpu_s"] += copy_s
    row["encode_cpu_s"] += encode_s
    for number, (copy, clip) in enumerate(zip(copied, clips, strict=True)):
        assert isinstance(clip, CutClip)
        row["copy_MB"] += len(copy.data) / 1e6
        row["encode_MB"] += len(clip.data) / 1e6
        if number < _COMPARED:
            row["mean_psnr_dB"] += _psnr(_luma(clip.data), _luma(copy.data))
            row["compared"] += 1


def _depth(path: Path, file: BinaryIO, rows: dict[str, Counter[str]]) -> None:
    with av.open(str(path)) as container:
        first = next(container.decode(video=0))
    if not is_hdr(first) and first.format.components[0].bits <= 8:
        return
    source = _luma(path.read_bytes())
    for bits in (8, 10):
        config = CurateConfig.model_validate({"cut": {"max_bits": bits, "ahead_mb": 0}}).source_stage()
        with scan(file, config) as seen:
            whole = Span(0, seen.timeline.frames, 0.0, float(seen.timeline.times_s[-1]))
            (clip,), cpu_s = _timed(file, seen, [whole], config.cut)
        if isinstance(clip, FailedClip):
            print(f"{path}: {clip.reason}", file=sys.stderr)
            return
        row = rows.setdefault(f"{path.name}, {bits} bits", Counter())
        row["frames"] += clip.frames
        row["cpu_ms_a_frame"] += cpu_s / clip.frames * 1e3
        row["MB"] += len(clip.data) / 1e6
        if clip.frames == seen.timeline.frames and (bits > 8 or not is_hdr(first)):
            row["psnr_dB"] += _psnr(_luma(clip.data), source)


def _timed(
    file: BinaryIO, seen: Scan, wanted: list[Span], config: CutConfig
) -> tuple[list[CutClip | FailedClip], float]:
    began_s = time.process_time()
    clips = list(cut(file, seen.timeline, wanted, seen.size, config, sound_clock=seen.sound_clock))
    return clips, time.process_time() - began_s


def _seconds(of: Iterable[Span]) -> float:
    return sum(span.end_s - span.start_s for span in of)


def _luma(video: bytes) -> list[np.ndarray]:
    """Return the luma of every tenth frame, in units of 8 bits."""
    with av.open(io.BytesIO(video)) as container:
        return [_plane(frame) for n, frame in enumerate(container.decode(video=0)) if n % _EVERY == 0]


def _plane(frame: VideoFrame) -> np.ndarray:
    bits, plane = frame.format.components[0].bits, frame.planes[0]
    samples = np.frombuffer(memoryview(plane), "<u2" if bits > 8 else np.uint8).reshape(plane.height, -1)
    return samples[:, : plane.width].astype(np.float32) / 2 ** (bits - 8)


def _psnr(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    error = np.mean([np.mean((a - b) ** 2) for a, b in zip(ours, theirs, strict=False)])
    return float(10 * np.log10(255**2 / max(error, 1e-6)))


if __name__ == "__main__":
    sys.exit(main())
