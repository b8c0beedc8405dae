"""Quality gate of block caches: one video with and without, before any is made with."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from reelweave.loader.errors import RunError
from reelweave.train.config.vae import SSIM_MIN_PX
from reelweave.train.distributed.world import World
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.vae.quality import psnr, ssim


@dataclass(frozen=True)
class CacheQuality:
    """Comparison of one video with and without the cache.

    Attributes:
        psnr_db: PSNR of the video with the cache to the one without, mean over frames.
        ssim: SSIM of both; None for frames smaller than its window.
        hits: number of evaluations whose blocks were skipped, on the first rank.
        evaluations: number of evaluations of the model, on the first rank.
    """

    psnr_db: float
    ssim: float | None
    hits: int
    evaluations: int


def pass_gate(
    sampler: VideoSampler,
    world: World,
    seed: int,
    passes: Sequence[Conditions],
    first_frames_BCTHW: torch.Tensor | None,
) -> tuple[Sequence[float] | None, CacheQuality]:
    """Return the polynomial for `teacache`, and the quality of one video; a collective of the video's ranks.

    The polynomial is fitted to the run without the cache.

    Args:
        sampler: sampler with a cache.
        world: ranks that make the video.
        seed: seed of the video.
        passes: conditions of each pass.
        first_frames_BCTHW: latents of its given first frames; None: text to video.

    Raises:
        RunError: the video is further from the one without a cache than allowed, or no block was skipped.
    """
    cache = sampler.config.cache
    assert cache is not None
    # The video without a cache, which also shows how outputs follow inputs.
    exact = replace(
        sampler,
        config=sampler.config.model_copy(update={"cache": cache.model_copy(update={"threshold": 0.0})}),
    )
    exact_BCTHW = exact.decode(exact.denoise(passes, [seed], lambda: None, first_frames_BCTHW))
    assert exact.cache is not None
    polynomial = exact.cache.fit() if cache.kind == "teacache" else None
    # The same video with it, and how far apart the two are; the first rank has the pictures.
    sampler = replace(sampler, cache_polynomial=polynomial)
    cached_BCTHW = sampler.decode(sampler.denoise(passes, [seed], lambda: None, first_frames_BCTHW))
    assert sampler.cache is not None
    hits, evaluations = sampler.cache.hits, sampler.cache.evaluations
    message = ""
    if cached_BCTHW is not None and exact_BCTHW is not None:
        cached, real = (x_BCTHW.float() / 255 for x_BCTHW in (cached_BCTHW, exact_BCTHW))
        structural = float(ssim(cached, real).mean()) if min(cached.shape[3:]) >= SSIM_MIN_PX else None
        message = json.dumps(
            asdict(CacheQuality(float(psnr(cached, real).mean()), structural, hits, evaluations))
        )
    quality = CacheQuality(**json.loads(world.gather_text(message)[0]))
    if not quality.hits:
        raise RunError(
            f"the cache skipped nothing in {quality.evaluations} evaluations: raise its threshold"
            f" ({cache.threshold:g}), or leave the cache out"
        )
    if quality.psnr_db < cache.min_psnr_db:
        raise RunError(
            f"with the cache, the first video is {quality.psnr_db:.1f} dB from the one without, below"
            f" {cache.min_psnr_db:g} dB: lower its threshold ({cache.threshold:g}), or leave the cache out"
        )
    return polynomial, quality
