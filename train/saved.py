"""Which files a finished or running run has its weights in."""

from pathlib import Path

from loader.errors import UsageError
from train import checkpoint


def checkpoint_folder(path: Path) -> Path:
    """The folder of a checkpoint: this one, or that of the latest of a run.

    Raises:
        UsageError: there is none.
    """
    folder = path if (path / checkpoint.STATE).exists() else checkpoint.latest(path)
    if folder is None:
        raise UsageError(
            f"{path} holds no checkpoint; give the folder of a run, or its checkpoints/step-000500"
        )
    return folder


def weights_file(folder: Path, averaged: bool = True) -> Path:
    """The weights of a checkpoint; their average where it is wanted and there."""
    ema = folder / checkpoint.EMA
    return ema if averaged and ema.exists() else folder / checkpoint.MODEL
