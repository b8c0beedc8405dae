"""Generation of videos from captions with a trained model."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from loader.errors import RunError, UsageError
from train.config.run import TrainConfig
from train.models.bundle import Bundle
from train.objectives.level import solve
from train.sampling.config import SampleConfig
from train.sampling.solvers import sample


@torch.no_grad()
def generate(
    bundle: Bundle,
    train: TrainConfig,
    config: SampleConfig,
    captions: Sequence[str],
    progress: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Generate a video for each caption, uint8 RGB [B, 3, frames, height, width].

    Noise is drawn on the CPU, so that a seed gives the same start on any device.

    Args:
        bundle: model, on the compute device.
        train: configuration that it was trained with.
        config: requested size, solver and guidance.
        captions: B captions.
        progress: called after each step.

    Raises:
        UsageError: the size does not match the model, the objective has fewer levels than steps, or
            guidance is requested from a model without caption dropout.
        RunError: a prediction is not finite.
    """
    if config.guidance != 1 and train.objective.caption_dropout == 0:
        raise UsageError(
            f"guidance={config.guidance:g} needs a model that knows videos without captions, but this one was trained"
            " with objective.caption_dropout=0; sample with guidance=1"
        )
    device = next(bundle.dit.parameters()).device
    size = bundle.tokenizer.latent_size((config.frames, config.height, config.width))
    levels = bundle.objective.level(bundle.objective.schedule(config.steps, math.prod(bundle.dit.grid(size))))
    levels = levels.to(device, torch.float32)
    predict = _guided(bundle, train.dtype, captions, config.guidance)

    def estimate(x_BCTHW: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        level = levels[number]
        return solve(level, x_BCTHW, predict(level.scale * x_BCTHW, level.timestep_input))

    shape = (len(captions), bundle.tokenizer.channels, *size)
    noise_BCTHW = torch.randn(shape, generator=torch.Generator().manual_seed(config.seed)).to(device)
    points = list(zip(levels.signal.tolist(), levels.noise.tolist(), strict=True))
    start_BCTHW = points[0][1] * noise_BCTHW
    latents_BCTHW = sample(estimate, start_BCTHW, points, config.solver, progress)
    if not latents_BCTHW.isfinite().all():
        raise RunError("the model's predictions are not finite; take an earlier checkpoint, or less guidance")
    video_BCTHW = bundle.tokenizer.decode(latents_BCTHW)
    return ((video_BCTHW + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def _guided(
    bundle: Bundle, dtype: Literal["float32", "bfloat16"], captions: Sequence[str], guidance: float
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the prediction under classifier-free guidance (Ho and Salimans 2022, eq. 6, with w = guidance - 1).

    Clean latents and noise are linear in predictions, so that guidance is the same for all objectives.
    """
    guided = guidance != 1
    device_type = next(bundle.dit.parameters()).device.type
    autocast = torch.autocast(device_type, torch.bfloat16, enabled=dtype == "bfloat16")
    with autocast:
        context_BMD, mask_BM = bundle.text([*captions, *[""] * (len(captions) if guided else 0)])

    def predict(x_BCTHW: torch.Tensor, told_1: torch.Tensor) -> torch.Tensor:
        if guided:
            x_BCTHW = torch.cat([x_BCTHW, x_BCTHW])
        with autocast:
            answer: torch.Tensor = bundle.dit(x_BCTHW, told_1.expand(len(x_BCTHW)), context_BMD, mask_BM)
        if not guided:
            return answer.float()
        with_caption, without = answer.float().chunk(2)
        return without + guidance * (with_caption - without)

    return predict
