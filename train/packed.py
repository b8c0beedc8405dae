"""A microbatch of samples of different shapes, trained as one packed sequence."""

import torch

from loader.batch import Pack
from train.config import TrainConfig
from train.models.bundle import Bundle
from train.models.denoiser import Work
from train.objectives.flow import draw, interpolate, sample_losses


def packed_losses(
    bundle: Bundle, config: TrainConfig, pack: Pack, device: torch.device
) -> tuple[torch.Tensor, Work]:
    """The loss of each sample, float32 [B], and what the samples came to.

    A sample's loss is the mean over its own values, however long it is, and the same as in a microbatch of its own
    shape: noise, time and caption dropout belong to the sample. Weigh the pack's mean by B over the step's samples.
    """
    with torch.no_grad():
        clean = [bundle.tokenizer.encode(video_CTHW[None].to(device)) for video_CTHW in pack.videos]
    noisy, velocities, times, captions = [], [], [], []
    for key, passed, caption, clean_1CTHW in zip(pack.keys, pack.passes, pack.captions, clean, strict=True):
        drawn = draw(config.objective, config.seed, [key], [passed], clean_1CTHW.shape[1:])
        t_1 = drawn.times.to(device)
        noisy_1CTHW, velocity_1CTHW = interpolate(clean_1CTHW, drawn.noise.to(device), t_1)
        noisy.append(noisy_1CTHW[0])
        velocities.append(velocity_1CTHW)
        times.append(t_1)
        captions.append("" if drawn.dropped[0] else caption)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        context_BMD, mask_BM = bundle.text(captions)
        predictions = bundle.dit.forward_packed(noisy, torch.cat(times), context_BMD, mask_BM)
    losses = [
        sample_losses(prediction_CTHW[None], velocity_1CTHW)
        for prediction_CTHW, velocity_1CTHW in zip(predictions, velocities, strict=True)
    ]
    return torch.cat(losses), bundle.dit.work([latent_CTHW.shape[1:] for latent_CTHW in noisy], mask_BM)
