"""Smart cuts beside encoded ones: the same spans, copied frames bit for bit, readers, processor time.

python -m tests.bench.smart_cut films FILES...       time and bytes of a whole pass in both modes, by turns
python -m tests.bench.smart_cut frames FILES...      every frame of every clip, in every reader
"""

import hashlib
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from reelweave.curate.frames.source import open_video
from tests.clip_readers import READERS, faults
from tests.cutting import curated, pictures

ROUNDS = 2
STRIDE = 5
_AT_ONCE_PX = 3 * 10**8


def curated_in(path: Path, mode: str) -> tuple[list, float]:
    with tempfile.TemporaryDirectory() as out:
        began_s = time.process_time()
        found = curated(path, Path(out), cut={"mode": mode})
        return found, time.process_time() - began_s


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
    wrong: Counter[str] = Counter()
    clips = frames = copied = 0
    reasons: Counter[str] = Counter()
    for path in paths:
        encoded, _ = curated_in(path, "encode")
        smart, _ = curated_in(path, "smart")
        spans = [[(r.start_s, r.end_s, r.state, r.frames) for r, _ in found] for found in (encoded, smart)]
        if spans[0] != spans[1]:
            wrong[f"{path.name}: other spans"] += 1
        whole = _digests(path)
        for record, data in smart:
            if record.state != "kept":
                continue
            reasons[
                record.reason.split("; ")[-1].partition(": ")[0]
                + ": "
                + ("" if "smart" in record.reason else record.reason.rpartition(": ")[2])
            ] += 1
            clips, frames = clips + 1, frames + record.frames
            count, _ = copied_of(record.reason)
            copied += count
            if count:
                equal = sum(digest in whole for digest in map(_digest, pictures(data)))
                if equal < count:
                    wrong[f"{path.name}: {count - equal} copied frames are not equal"] += 1
                for name in READERS:
                    for fault in faults(data, name, STRIDE):
                        wrong[f"{path.name} {record.start_s:.1f} s, {name}: {fault}"] += 1
        print(path.name, clips, frames, copied, dict(reasons), dict(wrong), flush=True)
    print(f"{clips} clips, {frames} frames, {copied} copied, {sum(wrong.values())} differ")
    return bool(wrong)


def _digest(picture: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(picture), digest_size=16).digest()


def _digests(path: Path) -> set[bytes]:
    with path.open("rb") as file, open_video(file) as (container, stream):
        return {_digest(frame.to_ndarray()) for frame in container.decode(stream)}


if __name__ == "__main__":
    films = [Path(name) for name in sys.argv[2:]]
    sys.exit(compare(films) if sys.argv[1] == "frames" else measure(films))
