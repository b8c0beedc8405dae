"""What stitching does to over-split shots: boundaries before and after, on videos with known transitions.

    python -m tests.bench.stitch [--videos DIR] [--joined N] [--set key=value]

Prints JSON. Over-split input comes from the colour detector at low thresholds, from PySceneDetect's ContentDetector
at low thresholds, and from the truth itself with random cuts added. Held-out videos are joined from footage of the
montages (tests/bench/shot_footage.py).
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.shots import ColourDetector, ColourDetectorConfig, Transition
from reelweave.curate.shots.score import Counts, Truth, analysis_frames, load_truth, score
from reelweave.curate.shots.stitch import SampleEmbeddings, StitchConfig, stitch
from reelweave.pipelines.configuration.config import resolve
from tests.bench.shot_footage import VIDEO_SUFFIXES, shots_of_montages, write_video
from tests.media import CORPUS

Detect = Callable[[Path, Truth], list[Transition]]
SEED = 88_000


def colour(cut_threshold: float) -> Detect:
    def detect(video: Path, _: Truth) -> list[Transition]:
        detector = ColourDetector(ColourDetectorConfig(cut_threshold=cut_threshold))
        for frame in analysis_frames(video, detector.analysis_size):
            detector.push(frame)
        return detector.finish()

    return detect


def content(threshold: float) -> Detect:
    def detect(video: Path, _: Truth) -> list[Transition]:
        import scenedetect

        stream = scenedetect.open_video(str(video))
        manager = scenedetect.SceneManager()
        manager.add_detector(scenedetect.ContentDetector(threshold=threshold, min_scene_len=5))
        manager.detect_scenes(stream)
        starts = [start.frame_num for start, _ in manager.get_scene_list()[1:]]
        return [Transition(start - 1, start, "cut") for start in starts]

    return detect


def random_cuts(video: Path, truth: Truth) -> list[Transition]:
    """The truth and a false cut about every second, none within half a second of anything true."""
    rng = random.Random(f"{SEED}{video.name}")
    true = [
        Transition(one.start_frame, one.end_frame, "cut" if one.hard else "gradual")
        for one in truth.transitions
    ]
    taken = {frame for one in true for frame in range(one.start_frame - 12, one.end_frame + 13)}
    frame = 0
    while (frame := frame + rng.randrange(15, 40)) < truth.frames - 12:
        if frame not in taken:
            true.append(Transition(frame - 1, frame, "cut"))
    return sorted(true, key=lambda one: one.start_frame)


DETECTORS: dict[str, Detect] = {
    "colour, defaults": colour(ColourDetectorConfig().cut_threshold),
    "colour, cut_threshold 0.25": colour(0.25),
    "colour, cut_threshold 0.1": colour(0.1),
    "PySceneDetect Content 20": content(20.0),
    "PySceneDetect Content 15": content(15.0),
    "truth and random cuts": random_cuts,
}


def main(arguments: list[str] | None = None) -> int:
    """Prints hard cuts found, missed and false, before and after, for every detector and set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--videos", type=Path, default=CORPUS)
    parser.add_argument("--joined", type=int, default=8)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(arguments)
    config = resolve(StitchConfig, None, options.set)
    sets = {"corpus": with_truth(options.videos)}
    with tempfile.TemporaryDirectory() as folder:
        shots = shots_of_montages(options.videos)
        for number in range(options.joined):
            write_video(Path(folder) / f"{number}.mp4", shots, SEED + number, joins=20)
        sets["held out"] = with_truth(Path(folder))
        result = {name: measure(videos, config) for name, videos in sets.items() if videos}
    print(json.dumps({"config": config.model_dump(), **result}, indent=1))
    return 0


def with_truth(folder: Path) -> list[tuple[Path, Truth]]:
    """Videos below a folder and their transitions."""
    found = []
    for path in sorted(folder.rglob("*.cuts.json")):
        stem = path.name.removesuffix(".cuts.json")
        video = next(
            path.with_name(stem + suffix)
            for suffix in VIDEO_SUFFIXES
            if path.with_name(stem + suffix).exists()
        )
        found.append((video, load_truth(path)))
    return found


def measure(videos: list[tuple[Path, Truth]], config: StitchConfig) -> dict[str, object]:
    """Hard cuts before and after stitching, by detector."""
    totals = {name: [Counts(0, 0, 0), Counts(0, 0, 0)] for name in DETECTORS}
    for video, truth in videos:
        samples = SampleEmbeddings(config)
        for number, picture in enumerate(analysis_frames(video, PICTURE)):
            samples.push(number, picture)
        for name, detect in DETECTORS.items():
            found = detect(video, truth)
            stitched = stitch(found, samples, truth.frames, config)
            totals[name][0] += score(truth, found).hard
            totals[name][1] += score(truth, stitched).hard
    return {name: {"before": one.as_json(), "after": two.as_json()} for name, (one, two) in totals.items()}


if __name__ == "__main__":
    raise SystemExit(main())
