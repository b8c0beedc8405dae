"""Evaluation of shot detectors against `.cuts.json` files, the hand-made ground truth beside a video.

In a `.cuts.json`, frames count from 0 in display order; `start_frame` is the last unblended frame of the
outgoing shot and `end_frame` the first unblended frame of the incoming one. A hard cut has end_frame =
start_frame + 1.
"""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from reelweave.curate.shots import ShotDetector, Transition
from reelweave.curate.shots.scale import Scaler
from reelweave.loader.errors import RunError, UsageError

TOLERANCE = 1
"""Frames by which an edge may be off."""


class TrueTransition(BaseModel, frozen=True):
    """One transition of the ground truth; other keys of the file are ignored."""

    type: str
    start_frame: int = Field(ge=0)
    end_frame: int
    required: bool = True
    allowed_boundaries: int = Field(1, ge=1)

    @property
    def hard(self) -> bool:
        """True for a hard cut, without blended frames."""
        return self.end_frame == self.start_frame + 1


class Truth(BaseModel, frozen=True):
    """Contents of a `.cuts.json`."""

    file: str
    frames: int = Field(ge=0)
    transitions: tuple[TrueTransition, ...]
    not_cuts: tuple[TrueTransition, ...] = ()


@dataclass(frozen=True)
class Counts:
    """Numbers of transitions found, missed and falsely reported."""

    found: int
    missed: int
    false: int

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.found + other.found, self.missed + other.missed, self.false + other.false)

    @property
    def precision(self) -> float:
        """Share of reports that are right; 1 without reports."""
        return self.found / (self.found + self.false) if self.found + self.false else 1.0

    @property
    def recall(self) -> float:
        """Share of true transitions that were found; 1 without any."""
        return self.found / (self.found + self.missed) if self.found + self.missed else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def as_json(self) -> dict[str, float]:
        """Return precision, recall and F1 with their counts."""
        return {
            "precision": round(self.precision, 4),
            "recall": round(self.recall, 4),
            "f1": round(self.f1, 4),
            **asdict(self),
        }


@dataclass(frozen=True)
class FileScore:
    """Evaluation of a detector on one video.

    Attributes:
        file: Name of the video.
        hard: Counts of hard cuts.
        gradual: Counts of dissolves, fades and other gradual transitions.
        mixed_kept: Blended frames of the found gradual transitions that the reports leave in a shot.
        clean_lost: Unblended frames that the reports of found gradual transitions remove from a shot.
        reported: All reported transitions.
        missed: Required transitions without a report.
        false: Reports without a transition.
    """

    file: str
    hard: Counts
    gradual: Counts
    mixed_kept: int
    clean_lost: int
    reported: tuple[Transition, ...]
    missed: tuple[TrueTransition, ...]
    false: tuple[Transition, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the scores and the mistakes."""
        return {
            "file": self.file,
            "hard": self.hard.as_json(),
            "gradual": self.gradual.as_json(),
            "mixed_kept": self.mixed_kept,
            "clean_lost": self.clean_lost,
            "missed": [[miss.type, miss.start_frame, miss.end_frame] for miss in self.missed],
            "false": [[alarm.kind, alarm.start_frame, alarm.end_frame] for alarm in self.false],
        }


def load_truth(path: Path) -> Truth:
    """Read the ground truth from a `.cuts.json`.

    Raises:
        UsageError: The file is missing or breaks the format; the message names file and key.
    """
    try:
        truth = Truth.model_validate_json(path.read_bytes().removeprefix(BOM_UTF8))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"]) or "the whole file"
        raise UsageError(f"{path} is no .cuts.json: {key}: {fault['msg']}") from error
    for index, transition in enumerate(truth.transitions):
        if not transition.start_frame < transition.end_frame < truth.frames:
            raise UsageError(
                f"{path}: transitions.{index}: need start_frame < end_frame < frames = {truth.frames}, "
                f"not {transition.start_frame} and {transition.end_frame}"
            )
    return truth


def score(truth: Truth, reported: Sequence[Transition]) -> FileScore:
    """Match reports with the ground truth, each report with at most one transition.

    A hard cut is found by a report, of either kind, whose edges are both within TOLERANCE. A gradual report
    over more frames discards unblended ones, so it counts as false and the cut as missed. A gradual
    transition is found by a cut inside it (within TOLERANCE). A gradual report that shares at least half of
    the shorter one finds it, too. `mixed_kept` and `clean_lost` measure how well they agree. Further reports
    inside it are false beyond its `allowed_boundaries`. A transition that is not required is neither found
    nor missed, and its report neither right nor false.
    """
    matched: list[list[Transition]] = [[] for _ in truth.transitions]
    false = []
    for report in reported:
        candidates = [
            index
            for index, transition in enumerate(truth.transitions)
            if finds(report, transition) and len(matched[index]) < transition.allowed_boundaries
        ]
        if candidates:
            # A report that fits a required transition and one beside it that is not required counts for the former.
            matched[min(candidates, key=lambda index: not truth.transitions[index].required)].append(report)
        else:
            false.append(report)
    required = [pair for pair in zip(truth.transitions, matched, strict=True) if pair[0].required]
    gradual = [pair for pair in required if not pair[0].hard and pair[1]]
    return FileScore(
        file=truth.file,
        hard=_counts([pair for pair in required if pair[0].hard], false, "cut"),
        gradual=_counts([pair for pair in required if not pair[0].hard], false, "gradual"),
        mixed_kept=sum(
            len(_mixed_cuts(transition) - _mixed_cuts(*reports)) for transition, reports in gradual
        ),
        clean_lost=sum(
            len(_mixed_cuts(*reports) - _mixed_cuts(transition)) for transition, reports in gradual
        ),
        reported=tuple(reported),
        missed=tuple(transition for transition, reports in required if not reports),
        false=tuple(false),
    )


def score_video(truth_path: Path, make_detector: Callable[[], ShotDetector]) -> FileScore:
    """Run a new detector over the video beside a `.cuts.json`, and score it.

    Raises:
        UsageError: The `.cuts.json` is wrong, or its video is missing.
        RunError: The frame counts of the video and of the ground truth differ.
    """
    truth = load_truth(truth_path)
    video = truth_path.with_name(Path(truth.file).name)
    if not video.is_file():
        raise UsageError(f"{truth_path}: file: there is no {video}")
    detector = make_detector()
    frames = 0
    for frame in analysis_frames(video, detector.analysis_size):
        detector.push(frame)
        frames += 1
    if frames != truth.frames:
        raise RunError(f"{video} decodes to {frames} frames, but {truth_path.name} is about {truth.frames}")
    return score(truth, detector.finish())


def score_folder(videos: Path, make_detector: Callable[[], ShotDetector]) -> list[FileScore]:
    """Score every video under a folder that has a `.cuts.json`.

    Raises:
        UsageError: There is no `.cuts.json`, or one is wrong.
        RunError: The frame counts of a video and of its ground truth differ.
    """
    truths = sorted(videos.rglob("*.cuts.json"))
    if not truths:
        raise UsageError(
            f"{videos} holds no .cuts.json; point --videos at a folder of videos with their truth"
        )
    return [score_video(truth, make_detector) for truth in truths]


def summary(scores: Sequence[FileScore]) -> dict[str, Any]:
    """Return totals over all files, and the scores of each file."""
    return {
        "hard": sum((file.hard for file in scores), Counts(0, 0, 0)).as_json(),
        "gradual": sum((file.gradual for file in scores), Counts(0, 0, 0)).as_json(),
        "mixed_kept": sum(file.mixed_kept for file in scores),
        "clean_lost": sum(file.clean_lost for file in scores),
        "files": [file.as_json() for file in scores],
    }


def analysis_frames(path: Path, size: tuple[int, int]) -> Iterator[NDArray[np.uint8]]:
    """Yield all frames of a video in display order, scaled to (width, height), [height, width, 3] RGB."""
    import av

    scale = Scaler(size)
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            yield scale(frame)


def finds(report: Transition, transition: TrueTransition) -> bool:
    """Return whether a report finds a transition, by the rules of `score`."""
    if transition.hard:
        return (
            abs(report.start_frame - transition.start_frame) <= TOLERANCE
            and abs(report.end_frame - transition.end_frame) <= TOLERANCE
        )
    if report.kind == "cut":
        return (
            transition.start_frame - TOLERANCE <= report.start_frame
            and report.end_frame <= transition.end_frame + TOLERANCE
        )
    shared = min(report.end_frame, transition.end_frame) - max(report.start_frame, transition.start_frame)
    return 2 * shared >= min(
        report.end_frame - report.start_frame, transition.end_frame - transition.start_frame
    )


def _mixed_cuts(*transitions: Transition | TrueTransition) -> set[int]:
    return {frame for each in transitions for frame in range(each.start_frame + 1, each.end_frame)}


def _counts(
    pairs: list[tuple[TrueTransition, list[Transition]]], false: list[Transition], kind: str
) -> Counts:
    num_found = sum(bool(reports) for _, reports in pairs)
    return Counts(num_found, len(pairs) - num_found, sum(report.kind == kind for report in false))
