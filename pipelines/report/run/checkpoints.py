"""Checkpoints in a run's folder."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reelweave.pipelines.report.run.configuration import Configuration

FOLDER = "checkpoints"

_STATE = "state.json"  # the last file of a checkpoint to be written (`reelweave.train.checkpoint.names`)
_STEP = re.compile(r"step-(\d{6,18})")


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint in a run's folder.

    Attributes:
        step: optimizer steps done.
        complete: true if it can be resumed from.
        bytes: bytes of its files.
    """

    step: int
    complete: bool
    bytes: int


@dataclass(frozen=True)
class CheckpointList:
    """Checkpoints of a run, listed.

    Attributes:
        elsewhere: place that the configuration names outside the run's folder, which is not listed; "" if in it.
        found: checkpoints by step.
    """

    elsewhere: str
    found: list[Checkpoint]

    @property
    def last_complete(self) -> int | None:
        """Step of the last checkpoint from which the run can go on."""
        return max((checkpoint.step for checkpoint in self.found if checkpoint.complete), default=None)


def read_checkpoints(run: Path, config: Configuration) -> CheckpointList:
    """List a run's checkpoints; no other place than its folder is looked at."""
    uri = config.value("checkpoints")
    elsewhere = uri if isinstance(uri, str) else ""
    folder = run / FOLDER
    if not folder.is_dir():
        return CheckpointList(elsewhere, [])
    checkpoints = [
        Checkpoint(int(match[1]), (path / _STATE).is_file(), _bytes(path))
        for path in folder.iterdir()
        if (match := _STEP.fullmatch(path.name)) and path.is_dir()
    ]
    return CheckpointList(elsewhere, sorted(checkpoints, key=lambda checkpoint: checkpoint.step))


def last_checkpoint(run: Path) -> tuple[int, float] | None:
    """Return step and time (seconds since 1970) of the newest whole checkpoint in a run's folder; None without one."""
    checkpoints = []
    for state in (run / FOLDER).glob(f"step-*/{_STATE}"):
        # It may be removed meanwhile.
        with suppress(OSError):
            if match := _STEP.fullmatch(state.parent.name):
                checkpoints.append((int(match[1]), state.stat().st_mtime))
    return max(checkpoints, default=None)


def _bytes(folder: Path) -> int:
    """Return the bytes of a checkpoint's files; some may go while it is looked at."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{parent}/{name}").st_size
    return total
