"""Checks of the models of an evaluation, made before any of them is loaded, or the libraries that load them."""

from pathlib import Path

from reelweave.curate.models.open_clip_model import check_model_path
from reelweave.loader.errors import UsageError
from reelweave.train.config.vae import LpipsConfig
from reelweave.train.vae.losses.backbone_file import check_backbone_file


def check_lpips(lpips: Path) -> None:
    """Check the file of --lpips.

    Raises:
        UsageError: it is missing, or too large.
    """
    check_backbone_file(LpipsConfig(backbone=lpips), "--lpips")


def check_clip(clip: str) -> tuple[str, str]:
    """Check the model of --clip, and return its name or folder, and the file of its weights if it is a name.

    Raises:
        UsageError: there is no such folder or file, or open_clip knows no model of that name.
    """
    name, _, weights = clip.partition(":")
    if not weights and not Path(name).is_dir():
        raise UsageError(
            f"--clip {clip} is no folder with an open_clip model; give one, or NAME:FILE with local weights"
        )
    if weights and not Path(weights).is_file():
        raise UsageError(f"--clip {clip}: {weights} is no file with weights")
    check_model_path(name, weights)
    return name, weights
