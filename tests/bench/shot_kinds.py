"""What shot detectors find and what misleads them, kind by kind, on hard videos.

    python -m tests.bench.shot_kinds FOLDER [--part PART] [--detectors NAME ...]

FOLDER holds what `tests.bench.shot_corpus` made, or, with --part, the footage itself: of that part the films whose
truth in `shot_truth.json` was read by eye. Prints JSON. All detectors run over the same files in this run.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reelweave.curate.shots import ShotConfig
from reelweave.curate.shots.score import Counts, FileScore, Truth, load_truth, score
from reelweave.curate.shots.transnet import network
from tests.bench.shot_corpus import part_of, truth_of
from tests.bench.shot_detectors import Detect, decode_only, duration_s, ours, scenedetect

DETECTORS: dict[str, Callable[[], Detect]] = {
    "decode": lambda: decode_only,
    "colour": lambda: ours(ShotConfig()),
    "hybrid": lambda: ours(ShotConfig(detector="hybrid")),
    "transnetv2": lambda: ours(ShotConfig(detector="transnetv2")),
    "content": lambda: scenedetect("ContentDetector"),
    "adaptive": lambda: scenedetect("AdaptiveDetector"),
}
"""What can be measured; `decode` only decodes and scales, the last two are PySceneDetect's with its defaults."""

PARTS = ("tuning", "sealed", "fresh", "development", "unseen", "unseen2", "unseen3")

_NEAR = 3  # frames from a disturbance to the false report that it explains


def films(folder: Path, part: str | None) -> list[tuple[Path, Truth, list[dict[str, Any]]]]:
    """Videos, their truth, and the disturbances in them."""
    found = []
    if part is None:
        for path in sorted(folder.glob("*.cuts.json")):
            disturbances = json.loads(path.read_text())["not_cuts"]
            found.append((path.with_name(load_truth(path).file), load_truth(path), disturbances))
        return found
    for path in sorted(folder.iterdir()):
        known = truth_of(path)
        if part_of(path.name) == part and known.get("read_by") == "eye":
            found.append((path, Truth(file=path.name, **known), []))
    return found


def explained(scored: FileScore, truth: Truth, disturbances: list[dict[str, Any]]) -> Counter[str]:
    """False reports by the disturbance, or else the transition, that lies near."""
    near = [(each["type"], each["start_frame"], each["end_frame"]) for each in disturbances]
    near += [(f"twice in {each.type}", each.start_frame, each.end_frame) for each in truth.transitions]
    counts: Counter[str] = Counter()
    for report in scored.false:
        names = [
            name
            for name, start, end in near
            if start - _NEAR <= report.end_frame and report.start_frame <= end + _NEAR
        ]
        counts[names[0] if names else "motion"] += 1
    return counts


def measure(detect: Detect, videos: list[tuple[Path, Truth, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Recall by kind, false reports by cause, and processor time."""
    total, kinds, found, false = Counts(0, 0, 0), Counter[str](), Counter[str](), Counter[str]()
    mixed = lost = 0
    mistakes: dict[str, Any] = {}
    start = time.process_time()
    reports = [detect(path) for path, _, _ in videos]
    cpu_s = time.process_time() - start
    for (path, truth, disturbances), reported in zip(videos, reports, strict=True):
        scored = score(truth, reported)
        total += scored.hard + scored.gradual
        mixed, lost = mixed + scored.mixed_kept, lost + scored.clean_lost
        required = [each.type for each in truth.transitions if each.required]
        missed = Counter(each.type for each in scored.missed)
        kinds.update(required)
        found.update(Counter(required) - missed)
        false += explained(scored, truth, disturbances)
        mistakes[path.name] = {key: scored.as_json()[key] for key in ("missed", "false")}
    return {
        **total.as_json(),
        "found_of": {kind: f"{found[kind]}/{kinds[kind]}" for kind in sorted(kinds)},
        "false_by": dict(false.most_common()),
        "mixed_kept": mixed,
        "clean_lost": lost,
        "cpu_s_per_video_s": round(cpu_s / sum(duration_s(path) for path, _, _ in videos), 4),
        "mistakes": mistakes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--detectors", nargs="+", choices=sorted(DETECTORS), default=["decode", "colour"])
    arguments = parser.parse_args()
    if {"hybrid", "transnetv2"} & set(arguments.detectors):
        network()  # loading it belongs to no video
    videos = films(arguments.folder, arguments.part)
    report = {name: measure(DETECTORS[name](), videos) for name in arguments.detectors}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
