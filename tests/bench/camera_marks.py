"""Camera movements and marks, found in clips of which they are known: precision and recall.

    python -m tests.bench.camera_marks [--rounds 3] > camera_marks.json

A virtual camera moves over real footage (`tests/camera_footage.py`). Thresholds were chosen on five films and are held
against six others, unseen. Half of the clips carry a semi-transparent mark.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from reelweave.curate.filters import overlay_scores
from reelweave.curate.filters.bars import find_bars, without_bars
from reelweave.curate.models.camera import CameraConfig, CameraMotion
from reelweave.curate.models.custom.types import Clip
from tests.camera_footage import FPS, HEIGHT, MOVES, SECONDS, TUNED, UNSEEN, WIDTH, rendered, shots
from tests.filter_footage import encode, sample_of

THRESHOLDS = {
    "camera_pan": 0.03,
    "camera_tilt": 0.03,
    "camera_zoom": 0.025,
    "camera_roll": 1.5,
    "camera_shake": 0.03,
}


def measured(films: dict[str, bool], rounds: int) -> list[dict[str, Any]]:
    """Every clip with its truth and its scores."""
    stage = CameraMotion(CameraConfig(), "cpu")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, shot in enumerate(shots(films, rounds)):
            shot = shot._replace(mark=("", "name", "", "logo")[number % 4])
            path = encode(Path(folder) / "clip.mp4", rendered(shot), rate=FPS)
            data = path.read_bytes()
            clip = Clip(data, "", round(FPS * SECONDS), FPS, HEIGHT, WIDTH, SECONDS)
            began = time.process_time()
            (scores,) = stage([clip])
            cpu_s = time.process_time() - began
            sample = sample_of(path)
            sample = without_bars(sample, find_bars(sample.pictures))
            found.append({**shot._asdict(), "scores": scores | overlay_scores(sample), "cpu_s": cpu_s})
    return found


def rates(clips: list[dict[str, Any]]) -> dict[str, Any]:
    """Precision and recall of each movement, of clips without one, and of marks."""
    told: dict[str, list[tuple[bool, bool]]] = {}
    for clip in clips:
        scores, moves = clip["scores"], clip["moves"]
        seen = (
            {move: scores[f"camera_{move}"] >= THRESHOLDS[f"camera_{move}"] for move in MOVES}
            if "camera_pan" in scores
            else {}
        )
        for move in MOVES if seen else ():
            told.setdefault(move, []).append((move in moves, seen[move]))
        if seen:
            told.setdefault("static", []).append((not moves, not any(seen.values())))
        told.setdefault("no scores", []).append((False, not seen))
        marked = scores["overlay_share"] > 0.002
        told.setdefault("mark, the camera moves" if moves else "mark, the camera stands", []).append(
            (bool(clip["mark"]), marked)
        )
    return {name: _rates(pairs) for name, pairs in told.items()}


def _rates(pairs: list[tuple[bool, bool]]) -> dict[str, Any]:
    right = sum(true and told for true, told in pairs)
    true, told = sum(one for one, _ in pairs), sum(one for _, one in pairs)
    return {
        "clips": len(pairs),
        "true": true,
        "told": told,
        "precision": round(right / told, 3) if told else None,
        "recall": round(right / true, 3) if true else None,
    }


def main() -> None:
    """Print rates of both sets of films, and the clips that were told wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", action="store_true", help="print every clip, too")
    options = parser.parse_args()
    result: dict[str, Any] = {"thresholds": THRESHOLDS}
    for name, films in (("tuned", TUNED), ("unseen", UNSEEN)):
        clips = measured(films, options.rounds)
        result[name] = rates(clips) | {
            "cpu_s_per_clip": round(sum(one["cpu_s"] for one in clips) / len(clips), 3)
        }
        if options.clips:
            result[f"{name}_clips"] = clips
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
