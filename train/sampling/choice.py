"""Choice of degrees for ranks that make each video together."""

import math

from loader.errors import UsageError
from train.models.denoiser import Denoiser
from train.parallel.context.token_shard import cuttable
from train.sampling.config import SampleLayoutConfig


def together(world_size: int, dit: Denoiser, passes: int, tokens: int) -> SampleLayoutConfig:
    """Return degrees that put all ranks to one video.

    The passes of guidance come first, since they exchange least; then heads (Ulysses) as far as they divide; then
    a ring of the rest. Ranks of which no degree makes use make other videos.

    Args:
        world_size: number of ranks.
        dit: the model.
        passes: number of passes of guidance.
        tokens: number of tokens of the smallest video.
    """
    cfg = math.gcd(world_size, passes)
    left = world_size // cfg
    try:
        heads = cuttable(dit).full_heads
    except UsageError:
        return SampleLayoutConfig(cfg=cfg)
    used = max(degree for degree in range(1, left + 1) if left % degree == 0 and degree <= tokens)
    ulysses = math.gcd(used, heads)
    return SampleLayoutConfig(cfg=cfg, ulysses=ulysses, ring=used // ulysses)
