"""Shot detectors side by side, ours and PySceneDetect's, on the corpus and on held-out joins.

    python -m tests.bench.shot_detectors [--videos DIR] [--joined N] [--network]

Prints JSON. Every detector decodes the same files in this run, on its own; CPU seconds count all threads. The
held-out videos are joined from footage of the montages that is not in `originals/`, on which the detector was
tuned, with a seed of their own.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

from reelweave.curate.shots import ColourDetector, ColourDetectorConfig, ShotConfig, Transition, make_detector
from reelweave.curate.shots.score import analysis_frames, load_truth, score, summary
from reelweave.curate.shots.transnet import network
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[3] / "shared" / "videos"
    parser.add_argument("--videos", type=Path, default=default, help="corpus with .cuts.json files")
    parser.add_argument("--joined", type=int, default=15, help="held-out videos of 20 joins each, per set")
    parser.add_argument("--network", action="store_true", help="hybrid and transnetv2 too (slow)")
    arguments = parser.parse_args()
    detectors = {
        "colour": ours(ShotConfig()),
        "decode and scale only": decode_only,
        "PySceneDetect ContentDetector": scenedetect("ContentDetector"),
        "PySceneDetect AdaptiveDetector": scenedetect("AdaptiveDetector"),
    }
    if arguments.network:
        network()  # loading it belongs to no video
        detectors |= {
            "hybrid": ours(ShotConfig(detector="hybrid")),
            "transnetv2": ours(ShotConfig(detector="transnetv2")),
        }
    corpus = sorted(arguments.videos.rglob("*.cuts.json"))
    labelled = {path.name.removesuffix(".cuts.json") for path in corpus} | {"nasa_telescope_two_tracks"}
    single_shots = [
        path
        for folder in ("originals", "duplicates")
        for path in sorted((arguments.videos / folder).iterdir())
        if path.suffix in VIDEO_SUFFIXES and path.stem not in labelled
    ]
    report = {"corpus": {name: measure(detect, corpus, single_shots) for name, detect in detectors.items()}}
    report["corpus"]["thresholds"] = sweep(corpus)
    with tempfile.TemporaryDirectory() as folder:
        shots = shots_of_montages(arguments.videos)
        for number, (name, (mixed, slower)) in enumerate(HELD_OUT.items()):
            joined = Path(folder) / str(number)
            joined.mkdir()
            for video in range(arguments.joined):
                write_video(
                    joined / f"{video}.mp4", shots, SEED + 1000 * number + video, JOINS, mixed, slower
                )
            truths = sorted(joined.glob("*.cuts.json"))
            report[name] = {other: measure(detect, truths, []) for other, detect in detectors.items()}
            if slower > 1:
                report[name]["colour, every frame"] = measure(ours(ShotConfig(), fps=25), truths, [])
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
