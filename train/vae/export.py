"""Export of a fine-tuned tokenizer to a diffusers folder."""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.checkpoint.export import round_tensor
from reelweave.train.checkpoint.new_folder import check_new, new_folder
from reelweave.train.checkpoint.weights import Weights
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.sampling.trained.frozen_parts import check_parts, vae_parts
from reelweave.train.vae.network import VideoVae
from reelweave.train.vae.statistics import LatentStatistics, mean_and_deviation


def export(saved: Weights, out: Path, dtype: str | None = None) -> None:
    """Write OUT/config.json and diffusion_pytorch_model.safetensors, atomically.

    If the run measures statistics, the configuration holds those of the new latents. For Wan and Cosmos these
    are mean and deviation, for CogVideoX and HunyuanVideo the scaling factor that normalizes the deviation to
    1.

    Args:
        saved: weights of a checkpoint.
        out: new folder.
        dtype: dtype that weights are rounded to, such as ``bfloat16``; None: keep theirs.

    Raises:
        UsageError: the folder exists or cannot be written, or the published VAE of the run is missing.
        RunError: the checkpoint is damaged.
    """
    check_new(out)
    try:
        config = VaeTrainConfig.model_validate(saved.state.config)
    except ValidationError as error:
        raise UsageError(
            f"{saved.uri} describes a tokenizer that this version does not know: {first_line(error)}"
        ) from error
    check_parts(saved.uri, saved.state.frozen, vae_parts(config, losses=False), "accept")
    vae = VideoVae(config.model, config.seed)
    saved.load_(vae.trained_weights())
    if config.model.measures_statistics:
        statistics = LatentStatistics(vae.channels, torch.device("cpu"))
        saved.load_group_("latents", statistics.tensors)
        _tell(vae.vae, statistics.tensors)
    if dtype is not None:
        for name, weight in vae.vae.named_parameters():
            weight.data = round_tensor(name, weight.data, getattr(torch, dtype))
        vae.vae.to(getattr(torch, dtype))  # and what else it counts as its own
    with new_folder(out) as aside:
        vae.vae.save_pretrained(aside, safe_serialization=True)


def _tell(vae: Any, moments: dict[str, torch.Tensor]) -> None:
    mean_C, deviation_C = mean_and_deviation(moments)
    if vae.config.get("latents_mean") is not None:
        vae.register_to_config(latents_mean=mean_C.tolist(), latents_std=deviation_C.tolist())
    else:
        variance = moments["square"].double().mean() - mean_C.mean().square()
        vae.register_to_config(scaling_factor=float(variance.rsqrt()))
