"""The loss of each sample of a microbatch or a pack."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from loader.batch import Microbatch, Pack
from train.config import TrainConfig
from train.models.bundle import Bundle
from train.models.denoiser import Work
from train.objectives.draw import draw
from train.objectives.level import Level, pose
from train.squared_errors import Question, SquaredErrors, of_whole
from train.timings import Timed, untimed


@dataclass(frozen=True, eq=False)
class Losses:
    """What B samples came to.

    Attributes:
        each: weighted mean squared error of each sample, at least float32 [B], on the device.
        normals: the standard normal numbers that decided their times, [B], on the CPU.
        video_tokens: of each sample.
        work: what all of them came to.
    """

    each: torch.Tensor
    normals: torch.Tensor
    video_tokens: tuple[int, ...]
    work: Work


def losses(
    bundle: Bundle,
    config: TrainConfig,
    batch: Microbatch | Pack,
    device: torch.device,
    quantile: float | None = None,
    errors: SquaredErrors = of_whole,
    part: Timed = untimed,
) -> Losses:
    """Runs the model on a batch; a sample's loss is the mean over its own values, however long it is.

    Noise, time and caption dropout belong to the sample: its loss is the same in any microbatch and in a pack.

    Args:
        bundle: the model.
        config: of the run.
        batch: B samples of one shape, or packed ones of any.
        device: where the model is.
        quantile: takes all samples at this quantile of their times, with their captions; None draws both.
        errors: runs the model.
        part: times the encoders.
    """
    if isinstance(batch, Pack):
        # Of a pack, numbers are latents.
        parts = [
            (slice(i, i + 1), video_CTHW[None], video_CTHW.is_floating_point())
            for i, video_CTHW in enumerate(batch.videos)
        ]
    elif batch.latents_BCTHW is not None:
        parts = [(slice(None), batch.latents_BCTHW, True)]
    else:
        parts = [(slice(None), batch.video_BCTHW, False)]
    posed = []
    for own, given, stored in parts:
        with torch.no_grad(), part("vae"):
            given = given.to(device)
            clean_BCTHW = given.float() if stored else bundle.tokenizer.encode(given)
        posed.append(_pose(bundle, config, batch.keys[own], batch.passes[own], clean_BCTHW, quantile))
    dropped = [drop for one in posed for drop in one.dropped]
    told_B = torch.cat([one.level.told for one in posed])
    with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        with part("text"):
            context_BMD, mask_BM = _told(bundle, batch, dropped, device)
        inputs, targets = [one.inputs for one in posed], [one.targets for one in posed]
        asked = Question(inputs, targets, told_B, context_BMD, mask_BM, isinstance(batch, Pack))
        errors_B = errors(bundle.dit, asked)
    each = torch.cat([one.level.weight for one in posed]) * errors_B
    video_tokens = tuple(count for one in posed for count in [one.tokens] * len(one.dropped))
    normals_B = torch.cat([one.normals for one in posed])
    work = bundle.dit.work([one.inputs.shape[2:] for one in posed for _ in one.dropped], mask_BM)
    return Losses(each, normals_B, video_tokens, work)


@dataclass(frozen=True, eq=False)
class _Posed:
    """What the model is asked about samples of one shape."""

    inputs: torch.Tensor
    targets: torch.Tensor
    level: Level
    normals: torch.Tensor
    dropped: list[bool]
    tokens: int


def _told(
    bundle: Bundle, batch: Microbatch | Pack, dropped: Sequence[bool], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The text of each sample: its context, and which of its tokens count; of a dropped caption, the empty one's."""
    if batch.contexts is None:
        captions = ["" if drop else text for drop, text in zip(dropped, batch.captions, strict=True)]
        context_BMD, mask_BM = bundle.text(captions)
        return context_BMD, mask_BM
    empty_MD = bundle.text([""])[0][0].float() if any(dropped) else None
    contexts = [
        own.to(device).float() if empty_MD is None or not drop else empty_MD
        for drop, own in zip(dropped, batch.contexts, strict=True)
    ]
    lengths_B1 = torch.tensor([[len(context)] for context in contexts], device=device)
    context_BMD = pad_sequence(contexts, batch_first=True)
    return context_BMD, torch.arange(context_BMD.shape[1], device=device) < lengths_B1


def _pose(
    bundle: Bundle,
    config: TrainConfig,
    keys: Sequence[str],
    passes: Sequence[int],
    clean_BCTHW: torch.Tensor,
    quantile: float | None,
) -> _Posed:
    tokens = bundle.dit.tokens(clean_BCTHW.shape[2:])
    drawn = draw(config.objective.caption_dropout, config.seed, keys, passes, clean_BCTHW.shape[1:])
    normals_B, dropped = drawn.normals, drawn.dropped
    if quantile is not None:
        normals_B = torch.full_like(normals_B, float(torch.special.ndtri(torch.tensor(quantile).double())))
        dropped = [False] * len(dropped)
    noise_BCTHW = drawn.noise.to(clean_BCTHW.device)
    times_B = torch.stack([bundle.objective.time(normal, tokens) for normal in normals_B])
    dtype = torch.promote_types(clean_BCTHW.dtype, noise_BCTHW.dtype)
    level = bundle.objective.level(times_B).to(clean_BCTHW.device, dtype)
    input_BCTHW, target_BCTHW = pose(level, clean_BCTHW, noise_BCTHW)
    return _Posed(input_BCTHW, target_BCTHW, level, normals_B, dropped, tokens)
