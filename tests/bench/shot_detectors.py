"""Shot detectors side by side, ours and PySceneDetect's, on the corpus and on held-out joins.

    python -m tests.bench.shot_detectors [--videos DIR] [--joined N] [--network]
    python -m tests.bench.shot_detectors --kinds FOLDER [--part PART] [--detectors NAME ...]
    python -m tests.bench.shot_detectors --kinds FOLDER --part PART --clips [KEY=VALUE ...]

Prints JSON. Every detector decodes the same files in this run, on its own; CPU seconds count all threads. The
held-out videos are joined from footage of the montages that is not in `originals/`, on which the detector was
tuned, with a seed of their own.

With ``--kinds``: what they find and what misleads them, kind by kind, on hard videos. FOLDER holds what
`tests.bench.shot_corpus` made, or, with --part, the footage itself: of that part the films whose truth in
`shot_truth.json` was read by eye.

With ``--clips``: how many of the clips that curation makes of them hold a transition, by default and with each of the
settings, such as ``stitch.enabled=true``.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from reelweave.curate.config import CurateConfig
from reelweave.curate.shots import ColourDetector, ColourDetectorConfig, ShotConfig, Transition, make_detector
from reelweave.curate.shots.score import (
    TOLERANCE,
    Counts,
    FileScore,
    TrueTransition,
    Truth,
    analysis_frames,
    load_truth,
    score,
    summary,
)
from reelweave.curate.shots.spans import Span, spans
from reelweave.curate.shots.transnet import network
from reelweave.curate.source_pass.scan import scan
from reelweave.pipelines.configuration.config import resolve
from tests.bench.shot_corpus import part_of, truth_of
from tests.bench.shot_footage import VIDEO_SUFFIXES, shots_of_montages, write_video

Detect = Callable[[Path], list[Transition]]

SEED = 77_000
JOINS = 20
HELD_OUT = {  # name: mixed frames of its dissolves at 25 frames per second, times as many frames
    "held out": ((8, 30), 1),
    "held out, short dissolves": ((1, 7), 1),
    "held out, long dissolves": ((31, 60), 1),
    "held out, 50 fps": ((8, 30), 2),
}
CUT_THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
GRADUAL_THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def ours(config: ShotConfig, fps: float | None = None) -> Detect:
    """One of our detectors, told the rate of the file or, to see what it is good for, another one."""

    def detect(path: Path) -> list[Transition]:
        detector = make_detector(config, fps or fps_of(path))
        for frame in analysis_frames(path, detector.analysis_size):
            detector.push(frame)
        return detector.finish()

    return detect


def decode_only(path: Path) -> list[Transition]:
    for _ in analysis_frames(path, ColourDetector(ColourDetectorConfig()).analysis_size):
        pass
    return []


def scenedetect(name: str) -> Detect:
    import scenedetect as peer

    def detect(path: Path) -> list[Transition]:
        scenes = peer.detect(str(path), getattr(peer, name)())
        starts = [start.frame_num for start, _ in scenes[1:]]
        return [Transition(start - 1, start, "cut") for start in starts]

    return detect


def measure(detect: Detect, truths: list[Path], single_shots: list[Path]) -> dict[str, Any]:
    scores = []
    alarms = 0
    start = time.process_time()
    for path in truths:
        truth = load_truth(path)
        scores.append(score(truth, detect(path.with_name(Path(truth.file).name))))
    for path in single_shots:
        alarms += len(detect(path))
    cpu_s = time.process_time() - start
    videos = [*single_shots, *(path.with_name(Path(load_truth(path).file).name) for path in truths)]
    result = summary(scores)
    del result["files"]
    return result | {
        "false_in_single_shots": alarms,
        "cpu_s_per_video_s": round(cpu_s / sum(map(duration_s, videos)), 4),
    }


def fps_of(path: Path) -> float:
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        assert rate is not None
        return float(rate)


def duration_s(path: Path) -> float:
    with av.open(str(path)) as container:
        assert container.duration is not None
        return container.duration / 1_000_000


def sweep(truths: list[Path]) -> dict[str, Any]:
    """[hard found, hard false, gradual found, gradual false] for each threshold, the other at its default."""
    held = [
        (
            load_truth(path),
            np.stack(list(analysis_frames(path.with_name(Path(load_truth(path).file).name), (64, 36)))),
        )
        for path in truths
    ]

    def run(config: ColourDetectorConfig) -> list[int]:
        scores = []
        for truth, frames in held:
            detector = ColourDetector(config)
            for frame in frames:
                detector.push(frame)
            scores.append(score(truth, detector.finish()))
        total = summary(scores)
        return [total[kind][count] for kind in ("hard", "gradual") for count in ("found", "false")]

    return {
        "cut_threshold": {t: run(ColourDetectorConfig(cut_threshold=t)) for t in CUT_THRESHOLDS},
        "gradual_threshold": {t: run(ColourDetectorConfig(gradual_threshold=t)) for t in GRADUAL_THRESHOLDS},
    }


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


def hard_films(folder: Path, part: str | None) -> list[tuple[Path, Truth, list[dict[str, Any]]]]:
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


def measure_kinds(detect: Detect, videos: list[tuple[Path, Truth, list[dict[str, Any]]]]) -> dict[str, Any]:
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


def holds(clip: Span, transition: TrueTransition) -> bool:
    """Whether a clip shows both sides of a transition, beyond what an edge may be off."""
    return clip.first + TOLERANCE <= transition.start_frame and transition.end_frame < clip.last - TOLERANCE


def measure_clips(videos: list[tuple[Path, Truth, list[dict[str, Any]]]], setting: str) -> dict[str, Any]:
    """Clips, how many hold a required transition, and of which kinds, by curation's own pass with one setting."""
    settings = ["cut.ahead_mb=0", *([setting] if setting else [])]
    config = resolve(CurateConfig, None, settings).source_stage()
    clips = impure = 0
    duration_s = clip_s = 0.0
    kinds = Counter[str]()
    mistakes: dict[str, Any] = {}
    for path, truth, _ in videos:
        with path.open("rb") as file, scan(file, config) as scanned:
            if scanned.timeline.frames != truth.frames:
                mistakes[path.name] = f"left out: {scanned.timeline.frames} frames, not {truth.frames}"
                continue
            pieces = [
                span
                for span in spans(scanned.timeline, scanned.transitions, None, config.spans)
                if span.fault is None
            ]
            duration_s += float(scanned.timeline.times_s[-1])
        inside = {
            span: [each for each in truth.transitions if each.required and holds(span, each)]
            for span in pieces
        }
        clips, clip_s = clips + len(pieces), clip_s + sum(span.end_s - span.start_s for span in pieces)
        impure += sum(bool(held) for held in inside.values())
        kinds.update(each.type for held in inside.values() for each in held)
        mistakes |= {
            f"{path.name} {span.first}-{span.last}": [[each.type, each.start_frame] for each in held]
            for span, held in inside.items()
            if held
        }
    return {
        "clips": clips,
        "hold_a_transition": impure,
        "purity": round(1 - impure / clips, 4) if clips else 1.0,
        "clip_s": round(clip_s, 1),
        "source_s": round(duration_s, 1),
        "transitions_inside": dict(kinds.most_common()),
        "mistakes": mistakes,
    }


def side_by_side(videos: Path, joined: int, with_network: bool) -> dict[str, Any]:
    """Return what every detector finds on the corpus and on held-out joins."""
    detectors = {
        "colour": DETECTORS["colour"](),
        "decode and scale only": decode_only,
        "PySceneDetect ContentDetector": DETECTORS["content"](),
        "PySceneDetect AdaptiveDetector": DETECTORS["adaptive"](),
    }
    if with_network:
        network()  # loading it belongs to no video
        detectors |= {
            "hybrid": DETECTORS["hybrid"](),
            "transnetv2": DETECTORS["transnetv2"](),
        }
    corpus = sorted(videos.rglob("*.cuts.json"))
    labelled = {path.name.removesuffix(".cuts.json") for path in corpus} | {"nasa_telescope_two_tracks"}
    single_shots = [
        path
        for folder in ("originals", "duplicates")
        for path in sorted((videos / folder).iterdir())
        if path.suffix in VIDEO_SUFFIXES and path.stem not in labelled
    ]
    report = {"corpus": {name: measure(detect, corpus, single_shots) for name, detect in detectors.items()}}
    report["corpus"]["thresholds"] = sweep(corpus)
    with tempfile.TemporaryDirectory() as folder:
        shots = shots_of_montages(videos)
        for number, (name, (mixed, slower)) in enumerate(HELD_OUT.items()):
            joined_folder = Path(folder) / str(number)
            joined_folder.mkdir()
            for video in range(joined):
                write_video(
                    joined_folder / f"{video}.mp4", shots, SEED + 1000 * number + video, JOINS, mixed, slower
                )
            truths = sorted(joined_folder.glob("*.cuts.json"))
            report[name] = {other: measure(detect, truths, []) for other, detect in detectors.items()}
            if slower > 1:
                report[name]["colour, every frame"] = measure(ours(ShotConfig(), fps=25), truths, [])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[3] / "shared" / "videos"
    parser.add_argument("--videos", type=Path, default=default, help="corpus with .cuts.json files")
    parser.add_argument("--joined", type=int, default=15, help="held-out videos of 20 joins each, per set")
    parser.add_argument("--network", action="store_true", help="hybrid and transnetv2 too (slow)")
    parser.add_argument("--kinds", type=Path, metavar="FOLDER", help="hard videos, kind by kind, instead")
    parser.add_argument("--part", choices=PARTS, help="of the footage in FOLDER")
    parser.add_argument(
        "--clips", nargs="*", metavar="KEY=VALUE", help="clips that hold a transition, instead"
    )
    parser.add_argument("--detectors", nargs="+", choices=sorted(DETECTORS), default=["decode", "colour"])
    arguments = parser.parse_args()
    if arguments.kinds is None:
        report = side_by_side(arguments.videos, arguments.joined, arguments.network)
    else:
        if {"hybrid", "transnetv2"} & set(arguments.detectors):
            network()  # loading it belongs to no video
        videos = hard_films(arguments.kinds, arguments.part)
        if arguments.clips is not None:
            report = {
                setting or "defaults": measure_clips(videos, setting) for setting in ("", *arguments.clips)
            }
            print(json.dumps(report, indent=1))
            return
        report = {name: measure_kinds(DETECTORS[name](), videos) for name in arguments.detectors}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
