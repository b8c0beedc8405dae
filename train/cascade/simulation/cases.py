"""Named problem instances for planner comparisons."""

import re

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, DiTCost, SampleShapes, TextCost
from reelweave.train.cascade.costs.vae_cost import VAECost
from reelweave.train.cascade.problem import Problem

HUNYUAN_720P = CostModel(
    dit=DiTCost(
        linear_s=1.351e-3,
        square_s=7.09e-9,
        exchanged_bytes=12 * 60 * 3072 * 2,
        token_bytes=1.0,
    ),
    vae=VAECost(tile_s=0.12, tile_frames=4, tiles_per_picture=4),
    text=TextCost(sample_s=0.25),
)
"""Cost model of HunyuanVideo at 720p that reproduces Arachne's case study (section I): 6.0 s for 13 frames and 58.6 s
for 113 on 4 GPUs. A token's hidden vector changes ranks four times in each of forward, recomputation and backward, in
60 layers. The unit of memory is one token."""

MEMORY_TOKENS = 30_000
"""Memory of a GPU, in tokens."""

DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Degrees that 24 heads allow, and 16 as a ring of Ulysses groups."""

_ARACHNE_FRAMES, _ARACHNE_GPUS = np.array([13, 37, 105, 113]), 16


def arachne() -> Problem:
    """Return the case study of Arachne's introduction: 13, 37, 105 and 113 frames on 16 GPUs of 2 nodes."""
    return at_720p(_ARACHNE_FRAMES, _ARACHNE_GPUS)


def at_720p(frames_S: IndexArray, gpus: int) -> Problem:
    """Return the problem of videos with these numbers of frames, one per microbatch, in HunyuanVideo at 720p."""
    return HUNYUAN_720P.problem(_samples(frames_S), gpus, DEGREES, memory_bytes=MEMORY_TOKENS)


def drawn_at_720p(samples: int, gpus: int, seed: int) -> Problem:
    """Return the problem of videos with 13 to 129 frames in steps of 4, drawn uniformly."""
    return at_720p(_drawn_frames(samples, seed), gpus)


def case(name: str, seed: int) -> Problem:
    """Return a case by its name on the command line: ``arachne``, or ``hunyuan-720p:64x256`` for samples x GPUs.

    Args:
        name: name of the case.
        seed: seed of drawn samples.

    Raises:
        UsageError: there is no such case.
    """
    samples, gpus = case_samples(name, seed)
    return HUNYUAN_720P.problem(samples, gpus, DEGREES, memory_bytes=MEMORY_TOKENS)


def case_samples(name: str, seed: int) -> tuple[SampleShapes, int]:
    """Return the samples and the number of GPUs of a case; see `case`."""
    if name == "arachne":
        return _samples(_ARACHNE_FRAMES), _ARACHNE_GPUS
    match = re.fullmatch(r"hunyuan-720p:([1-9]\d{0,4})x([1-9]\d{0,4})", name)
    if not match:
        raise UsageError(
            f"{name} is no workload: there is arachne, and hunyuan-720p:SAMPLESxGPUS such as hunyuan-720p:64x256"
        )
    return _samples(_drawn_frames(int(match[1]), seed)), int(match[2])


def _drawn_frames(samples: int, seed: int) -> IndexArray:
    return np.asarray(13 + 4 * np.random.default_rng(seed).integers(0, 30, samples))


def _samples(frames_S: IndexArray) -> SampleShapes:
    return SampleShapes(np.ones_like(frames_S), frames_S, 3600 * (1 + (frames_S - 1) // 4))
