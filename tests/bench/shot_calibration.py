"""Probabilities of shot candidates, fitted to films whose transitions were read by eye, and how well they hold.

    python -m tests.bench.shot_calibration FOOTAGE

FOOTAGE is that of `tests.bench.shot_detectors`; its fresh and unseen parts count. Prints JSON: offset and slope of each
kind for `curate/shots/colour/calibration.py`, and reliability, where each film is judged by a fit to other sources.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reelweave.curate.shots.colour.detector import REACH, ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.rate import frame_step
from reelweave.curate.shots.score import TrueTransition, Truth, analysis_frames, finds
from reelweave.curate.shots.types import Candidate, Transition, overlap
from tests.bench.shot_detectors import fps_of, hard_films

PARTS = ("fresh", "unseen", "unseen2", "unseen3")
GROUPS = {"cut": "cut", "abrupt": "abrupt", "dissolve": "run", "gradual": "run", "fade": "fade"}
CONSTANT = ("abrupt", "fade")
BINS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
EDGE = 1e-4
FOLDS = 10


class Judged(NamedTuple):
    """A candidate, and whether it is a transition."""

    source: str
    group: str
    score: float
    is_true: bool


def judge(path: Path, truth: Truth) -> list[Judged]:
    """Candidates of a film, the best one of each place; those beside a transition or not required say nothing."""
    step, detector = frame_step(fps_of(path)), ColourDetector(ColourDetectorConfig())
    for number, frame in enumerate(analysis_frames(path, detector.analysis_size)):
        if number % step == 0:
            detector.push(frame)
    reported, candidates = detector.finish(), detector.candidates()
    chosen: list[Candidate] = []
    for each in sorted(candidates, key=lambda each: (each.transition not in reported, -each.score)):
        if each.transition in reported:
            is_new = all(each.transition != other.transition for other in chosen)
        else:
            is_new = not any(overlap(each.transition, other.transition, REACH) for other in chosen)
        if is_new:
            chosen.append(each)
    judged = []
    for each in chosen:
        change = Transition(each.transition.start_frame * step, each.transition.end_frame * step, "gradual")
        place = each.transition if step == 1 else change
        hits = [known for known in truth.transitions if found_at(place, known, step)]
        near = any(
            known.start_frame - REACH * step <= place.end_frame
            and place.start_frame <= known.end_frame + REACH * step
            for known in truth.transitions
        )
        is_true = any(known.required for known in hits)
        if is_true or not (hits or (near and each.transition not in reported)):
            judged.append(Judged(path.name.split("__")[0], GROUPS[each.kind], each.score, is_true))
    return judged


def found_at(place: Transition, known: TrueTransition, step: int) -> bool:
    if step > 1 and known.hard:
        return place.start_frame - 1 <= known.start_frame <= place.end_frame
    return finds(place, known)


def fit(rows: Sequence[Judged]) -> dict[str, tuple[float, float]]:
    """Offset and slope of each group; films of a source share a weight that grows with the root of their number."""
    found = {}
    for group in sorted({row.group for row in rows}):
        own = [row for row in rows if row.group == group]
        counts = Counter(row.source for row in own)
        weight_N = np.array([counts[row.source] ** -0.5 for row in own])
        weight_N *= len(own) / weight_N.sum()
        true_N = np.array([row.is_true for row in own], np.float64)
        if group in CONSTANT:
            found[group] = (log_odds(((weight_N * true_N).sum() + 1) / (len(own) + 2)), 0.0)
            continue
        input_ND = np.array([[1.0, log_odds(row.score)] for row in own])
        line_D = np.array([0.0, 0.0])
        for _ in range(100):
            p_N = 1 / (1 + np.exp(-input_ND @ line_D))
            slope_DD = input_ND.T @ (input_ND * (weight_N * p_N * (1 - p_N))[:, None]) + 0.01 * np.eye(2)
            line_D += np.linalg.solve(
                slope_DD, input_ND.T @ (weight_N * (true_N - p_N)) - 0.01 * (line_D - [0, 1])
            )
        found[group] = (float(line_D[0]), float(line_D[1]))
    return found


def log_odds(share: float) -> float:
    share = min(max(share, EDGE), 1 - EDGE)
    return math.log(share / (1 - share))


def fold(source: str, count: int) -> int:
    return int(sha256(f"calibration {source}".encode()).hexdigest(), 16) % count


def reliability(rows: Sequence[Judged], probability: Callable[[Judged], float]) -> dict[str, object]:
    p_N, true_N = np.array([probability(row) for row in rows]), np.array([row.is_true for row in rows])
    bins = []
    for low, high in pairwise(BINS):
        inside_N = (p_N >= low) & ((p_N < high) | (high == 1))
        if inside_N.any():
            told, came = float(p_N[inside_N].mean()), float(true_N[inside_N].mean())
            bins.append([low, high, int(inside_N.sum()), round(told, 3), round(came, 3)])
    return {"brier": round(float(((p_N - true_N) ** 2).mean()), 4), "bins": bins}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("footage", type=Path)
    footage = parser.parse_args().footage
    films = [film for part in PARTS for film in hard_films(footage, part)]
    rows = [row for path, truth, _ in films for row in judge(path, truth)]
    folds = [fit([row for row in rows if fold(row.source, FOLDS) != number]) for number in range(FOLDS)]
    half = fit([row for row in rows if fold(row.source, 2) == 0])

    def of(line: dict[str, tuple[float, float]], row: Judged) -> float:
        offset, slope = line[row.group]
        return 1 / (1 + math.exp(-offset - slope * log_odds(row.score)))

    print(
        json.dumps(
            {
                "films": len(films),
                "sources": len({row.source for row in rows}),
                "candidates": len(rows),
                "fit": {group: [round(each, 2) for each in line] for group, line in fit(rows).items()},
                "other sources": reliability(rows, lambda row: of(folds[fold(row.source, FOLDS)], row)),
                "other half": reliability(
                    [row for row in rows if fold(row.source, 2) == 1], lambda row: of(half, row)
                ),
                "scores as they are": reliability(rows, lambda row: row.score),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
