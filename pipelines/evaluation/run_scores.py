"""Scores of a run's validation videos, in its folder: a line for each step and prompt set of ``scores.jsonl``."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reelweave.loader.base.named_file import lines_of
from reelweave.loader.errors import RunError, first_line
from reelweave.pipelines.evaluation.videos import VideoSet
from reelweave.pipelines.terminal.files import read_text, unwritable, write_whole
from reelweave.train.loop.logs.record import SCORES
from reelweave.train.loop.validation_files import FOLDER, MANIFEST

_KEYS = {"step": int, "prompt_set": str, "videos": int, "metrics": dict, "sha256": str, "asked": dict}


def has_validation_videos(folder: Path) -> bool:
    """Return whether a folder is a run that has sampled validation videos."""
    return any(folder.glob(f"{FOLDER}/step-*/{MANIFEST}"))


def validated_sets(run: Path) -> list[VideoSet]:
    """Return the videos of each validated step of a run, by step; steps without any video are left out.

    Raises:
        RunError: a manifest is damaged.
    """
    validations = []
    for manifest in run.glob(f"{FOLDER}/step-*/{MANIFEST}"):
        try:
            record = json.loads(read_text(manifest))
            step = int(record["step"])
            records = {
                str(video["file"]): {"file": str(video["file"]), "prompt": str(video["prompt"]), "step": step}
                for video in record["videos"]
                if video["file"] is not None
            }
            request = json.dumps(
                [[video["prompt"] for video in record["videos"]], record["sample"]], sort_keys=True
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{manifest} is damaged: {first_line(error)}") from error
        paths = tuple(path for path in sorted(manifest.parent.glob("*.mp4")) if path.name in records)
        if paths:
            prompt_set = f"validation-{hashlib.sha256(request.encode()).hexdigest()[:12]}"
            validations.append((step, VideoSet(manifest.parent, paths, records, prompt_set)))
    return [videos for _, videos in sorted(validations, key=lambda each: each[0])]


def read_score_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's scores by step: step, prompt_set, videos, metrics, by_video; [] without a file.

    Raises:
        RunError: the file is damaged.
    """
    path = run / SCORES
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in lines_of(read_text(path))]
        wrong = [
            name for line in lines for name, kind in _KEYS.items() if not isinstance(line.get(name), kind)
        ]
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({first_line(error)}): remove it, and evaluate again") from error
    if wrong:
        raise RunError(f"{path} is damaged ({wrong[0]}): remove it, and evaluate again")
    return lines


class RunScores:
    """Scores of one run, written step by step, so that an interrupted evaluation goes on where it was.

    Args:
        run: folder of the run.
        settings: options of the evaluation that change its scores, JSON values.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._run, self._asked = run, dict(settings)
        self._known = {_key(line): line for line in read_score_lines(run)}

    def find_known(self, videos: VideoSet) -> dict[str, Any] | None:
        """Return the line of these videos, as they are now and under these options; None: they are to be evaluated."""
        line = self._known.get((videos.step, videos.prompt_set))
        same = line is not None and (line["sha256"], line["asked"]) == (_digest(videos), self._asked)
        return line if same else None

    def add(self, videos: VideoSet, row: Mapping[str, Any]) -> None:
        """Write the scores of a step to the file, and to the run's TensorBoard if it has one.

        Raises:
            UsageError: the file cannot be written.
        """
        line = {
            "step": videos.step,
            "prompt_set": videos.prompt_set,
            **{name: row[name] for name in ("videos", "cut_captions", "metrics", "by_video") if name in row},
            "asked": self._asked,
            "sha256": _digest(videos),
        }
        # Lines of another evaluation of this run that has ended meanwhile are kept.
        self._known = {_key(score_line): score_line for score_line in read_score_lines(self._run)} | {
            _key(line): line
        }
        ordered = sorted(self._known.values(), key=_key)
        text = "".join(f"{json.dumps(record, ensure_ascii=False, allow_nan=False)}\n" for record in ordered)
        write_whole(self._run / SCORES, text.encode(), "scores")
        self._show(line)

    def _show(self, line: Mapping[str, Any]) -> None:
        if not (self._run / "tensorboard").is_dir():
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        # A folder of its own: TensorBoard reads the newest file of a folder alone, and the run may be writing to its.
        try:
            with SummaryWriter(str(self._run / "tensorboard" / "scores")) as events:
                for name, value in line["metrics"].items():
                    if value is not None:
                        events.add_scalar(f"scores/{name}", value, line["step"])
        except OSError as error:
            raise unwritable(f"{self._run}/tensorboard", error) from error


def _key(line: Mapping[str, Any]) -> tuple[Any, Any]:
    return line["step"], line["prompt_set"]


def _digest(videos: VideoSet) -> str:
    """Return a hash of all videos' bytes and captions."""
    digest = hashlib.sha256()
    for path in videos.paths:
        digest.update(f"{path.name} {videos.caption(path)} ".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
