"""LPIPS: distance of frames in the features of an image network (Zhang et al., 2018)."""

import pickle
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.vae import LpipsConfig
from reelweave.train.vae.losses.backbone_file import PUBLISHED, check_backbone_file, unreadable


class Perceptual(nn.Module):
    """LPIPS 0.1 of single frames, frozen.

    Network and linear weights are those of torchmetrics; the backbone's weights are read from a file.

    Args:
        config: configuration of LPIPS.
        key: what the person calls the file, for messages.

    Raises:
        UsageError: torchmetrics is not installed, or the file is missing or of another network.
    """

    def __init__(self, config: LpipsConfig, key: str = "losses.lpips.backbone") -> None:
        super().__init__()
        try:
            # The public class only loads the backbone from torchvision's hub.
            from torchmetrics.functional.image.lpips import _NoTrainLpips
        except ImportError as error:
            raise UsageError("losses.lpips needs torchmetrics: pip install 'reelweave[vae]'") from error
        weights = _read(config, key)
        self._network = _NoTrainLpips(net=config.network, pnet_rand=True).to(torch.get_default_dtype())
        backbone: nn.Module = self._network.net
        # torchmetrics splits torchvision's layers into slices and keeps their numbers.
        source_names = {name: re.sub(r"^slices?\.?\d+", "features", name) for name in backbone.state_dict()}
        try:
            backbone.load_state_dict({name: weights[source] for name, source in source_names.items()})
        except (KeyError, RuntimeError) as error:
            raise UsageError(
                f"{key}={str(config.backbone)!r} does not hold the weights of torchvision's"
                f" {PUBLISHED[config.network]}: {first_line(error)}"
            ) from error

    def forward(self, made_BCTHW: torch.Tensor, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return LPIPS of each frame, [B, T]; pixels in [-1, 1]."""
        frames = (x_BCTHW.transpose(1, 2).flatten(0, 1) for x_BCTHW in (made_BCTHW, video_BCTHW))
        found_N: torch.Tensor = self._network(*frames)
        return found_N.reshape(made_BCTHW.shape[0], made_BCTHW.shape[2])


def _read(config: LpipsConfig, key: str) -> dict[str, torch.Tensor]:
    path: Path = config.backbone
    check_backbone_file(config, key)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        # torch advises to load what it holds for code.
        reason = "no weights" if isinstance(error, pickle.UnpicklingError) else first_line(error)
        raise unreadable(config, key, reason) from error
    return weights
