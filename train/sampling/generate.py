"""Generation of videos from captions with a trained model."""

import math
from collections.abc import Callable, Sequence

import torch

from loader.errors import RunError, UsageError
from train.config.run import TrainConfig
from train.models.bundle import Bundle
from train.objectives.level import solve
from train.sampling.config import SampleConfig
from train.sampling.guidance import Guided, text_weights
from train.sampling.noise import starting_noise
from train.sampling.predictor import Conditions, ModelRunner, SchedulePoint, WholeModel
from train.sampling.solvers.ode import sample


@torch.no_grad()
def generate(
    bundle: Bundle,
    train: TrainConfig,
    config: SampleConfig,
    captions: Sequence[str],
    progress: Callable[[], None] = lambda: None,
    runner: ModelRunner | None = None,
) -> torch.Tensor:
    """Generate a video for each caption, uint8 RGB [B, 3, frames, height, width].

    Video number b starts from the noise of seed + b, the same on any device and in any batch.

    Args:
        bundle: model, on the compute device.
        train: configuration that it was trained with.
        config: requested size, solver and guidance.
        captions: B captions.
        progress: called after each step.
        runner: model on its ranks; None: the bundle's, as a whole.

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
    parameter = next(bundle.dit.parameters())
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    size = bundle.tokenizer.latent_size((config.frames, config.height, config.width))
    levels = bundle.objective.level(bundle.objective.schedule(config.steps, math.prod(bundle.dit.grid(size))))
    points = list(zip(levels.signal.tolist(), levels.noise.tolist(), strict=True))
    levels = levels.to(parameter.device, dtype)
    autocast = torch.autocast(parameter.device.type, torch.bfloat16, enabled=train.dtype == "bfloat16")
    with autocast:
        predict = Guided(runner or WholeModel(bundle.dit), *_passes(bundle, captions, config.guidance))

    def estimate(x_BCTHW: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        point = SchedulePoint(number, len(points), levels[number])
        with autocast:
            prediction_BCTHW = predict(x_BCTHW, point)
        return solve(point.level, x_BCTHW, prediction_BCTHW)

    seeds = [(config.seed + number) % 2**63 for number in range(len(captions))]
    noise_BCTHW = starting_noise(seeds, (bundle.tokenizer.channels, *size)).to(parameter.device, dtype)
    start_BCTHW = points[0][1] * noise_BCTHW
    latents_BCTHW = sample(estimate, start_BCTHW, points, config.solver, progress)
    if not latents_BCTHW.isfinite().all():
        raise RunError("the model's predictions are not finite; take an earlier checkpoint, or less guidance")
    video_BCTHW = bundle.tokenizer.decode(latents_BCTHW)
    return ((video_BCTHW + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def _passes(
    bundle: Bundle, captions: Sequence[str], guidance: float
) -> tuple[Sequence[Conditions], Sequence[float]]:
    """Return the conditions and the weight of each pass."""
    weights = text_weights(guidance)
    texts = [*captions, *[""] * (len(captions) * (len(weights) - 1))]
    context_BMD, mask_BM = bundle.text(texts)
    parts = (context_BMD.split(len(captions)), mask_BM.split(len(captions)))
    return [Conditions(*pair) for pair in zip(*parts, strict=True)], weights
