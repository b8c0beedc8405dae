"""Aids to guidance of UNITE, the artifact of Latent Parallelism: each changes the video, with or without parts.

Strengths rise linearly from a point of the schedule to its end. The artifact pads averages with zeros, which
dims borders, and takes the spread of each part alone. By default an average counts existing places only, and
spreads are those of the whole video.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from reelweave.train.distributed.world import World
from reelweave.train.sampling.latent_parallel.rules import Aids
from reelweave.train.sampling.ranks.agreement import gather_by_rank

DECAY_FROM, DELTA_FROM, RESCALE_FROM, FINAL_FROM = 0.6, 0.55, 0.2, 0.85

Spread = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Function from predictions to the standard deviations of their channels, [B, C, 1, 1, 1] each."""


def rising(progress: float, start: float, end: float) -> float:
    """Return 0 up to a share of the steps, then a line to `end` at the last step."""
    return end * max(0.0, progress - start) / (1 - start)


def smooth_latents(x_BCTHW: torch.Tensor, share: float, zero_padded: bool) -> torch.Tensor:
    """Return x with a share of its mean over 3 x 3 places.

    Args:
        x_BCTHW: latents.
        share: share of the mean, in [0, 1].
        zero_padded: count places beyond borders as zeros; false: do not count them.
    """
    if not share or not x_BCTHW.numel():
        return x_BCTHW
    mean = F.avg_pool2d(x_BCTHW.flatten(0, 1), 3, 1, 1, count_include_pad=zero_padded)
    return (1 - share) * x_BCTHW + share * mean.view_as(x_BCTHW)


def combine_aided(
    predictions: Sequence[torch.Tensor],
    weights: Sequence[float],
    aids: Aids,
    progress: float,
    spread: Spread,
    zero_padded: bool = False,
) -> torch.Tensor:
    """Combine the passes of guidance as `reelweave.train.sampling.prediction.guidance.combine` does, with aids.

    Args:
        predictions: predictions of each pass, the fully conditioned first.
        weights: weights of each pass.
        aids: strengths at the last step.
        progress: share of the steps, from 0 to 1.
        spread: standard deviation of each channel.
        zero_padded: see `smooth_latents`.
    """
    *leading, last = predictions
    decay = 1 - rising(progress, DECAY_FROM, aids.guidance_decay)
    share = rising(progress, DELTA_FROM, aids.delta_smoothing)
    total = last
    for prediction, weight in zip(leading, weights, strict=False):
        total = total + decay * weight * smooth_latents(prediction - last, share, zero_padded)
    phi = rising(progress, RESCALE_FROM, aids.rescale) if leading else 0.0
    if not phi:
        return total
    wide, target = spread([total, predictions[0]])
    # Equal predictions, as of a new model, have no spread to correct.
    factor = torch.where(wide > 0, target / wide, 1.0)
    return total * (phi * factor + (1 - phi))


def channel_spread(xs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the standard deviation of each channel of tensors [B, C, T, H, W]."""
    return [x_BCTHW.std((2, 3, 4), keepdim=True) for x_BCTHW in xs]


def shared_spread(
    share: torch.Tensor, positions: int, groups: World, xs: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the standard deviation of each channel of a video, from a part on each rank; a collective.

    Args:
        share: share of each place that this part stands for, broadcast to [B, C, T, H, W]; shares sum to 1.
        positions: number of places of a channel in the whole video.
        groups: ranks of the parts.
        xs: parts, maybe empty.
    """
    x_NBCTHW = torch.stack(list(xs)).double()
    weighted = x_NBCTHW * share
    moments = torch.stack([weighted.sum((3, 4, 5)), (weighted * x_NBCTHW).sum((3, 4, 5))])
    total, squares = gather_by_rank(moments, groups).sum(dim=0)
    variance_NBC = (squares - total.square() / positions).clamp(min=0) / (positions - 1)
    return list(variance_NBC.sqrt().to(xs[0].dtype)[..., None, None, None])
