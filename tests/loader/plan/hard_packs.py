"""Mixtures that are hard to pack, on time, memory or balance, and what planning a step of them takes and gives."""

import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.plan.balance import least_load
from reelweave.loader.plan.packing import CARRIED, PackSizes, balanced_packs, num_taken


def mixtures(samples: int, tokens: int, seed: int = 0) -> dict[str, IndexArray]:
    """Return the lengths S of each mixture's samples, int64 [samples].

    Args:
        samples: number of samples.
        tokens: M_mem; some mixtures are hard because of how their samples divide it.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    image_N = 256 + generator.integers(77, 513, samples)

    def rarely(share: float, lowest: float, highest: float) -> IndexArray:
        long_N = generator.integers(int(lowest * tokens), int(highest * tokens) + 1, samples)
        return np.where(generator.random(samples) < share, long_N, image_N)

    return {
        "images of 256 px": image_N,
        "images of one length": np.full(samples, 333),
        "0.1 % 720p videos": rarely(0.001, 0.42, 0.42),
        "Pareto 1.1": np.minimum(300 * (1 + generator.pareto(1.1, samples)), 3 * tokens).astype(np.int64),
        "2 % of 0.51 to 0.6 M_mem": rarely(0.02, 0.51, 0.6),
        "2 % of 0.34 to 0.42 M_mem": rarely(0.02, 0.34, 0.42),
        "0.3 % that fill a pack": rarely(0.003, 1, 1),
        "0.3 % too long for a pack": rarely(0.003, 2, 2),
        "six to a pack": generator.integers(int(0.151 * tokens), int(0.165 * tokens), samples),
        "latents of 64 tokens": 64 + generator.integers(1, 20, samples),
    }


class Packed(NamedTuple):
    """What planning one step took and gave.

    Attributes:
        samples: of the step.
        seconds: processor time.
        peak_mib: peak memory of planning.
        idle: share of time that ranks wait, once a step.
        floor: the least it can be.
        in_slots: the same where ranks wait after every pack.
        carried: samples that fit into no pack.
        fullest: tokens of the fullest pack, relative to M_mem.
        fill: tokens of all packs, relative to theirs.
    """

    samples: int
    seconds: float
    peak_mib: float
    idle: float
    floor: float
    in_slots: float
    carried: int
    fullest: float
    fill: float


def packed(lengths: IndexArray, step: PackSizes) -> Packed:
    """Plan one step of a stream of samples with the cost S^2."""
    costs: Floats = lengths.astype(np.float64) ** 2
    tracemalloc.start()
    began = time.process_time()
    count = num_taken(lengths, costs, step)
    pack = balanced_packs(lengths[:count], costs[:count], step)
    seconds = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    own = np.flatnonzero(pack != CARRIED)
    loads_jR = np.bincount(pack[own], costs[own], minlength=step.per_step).reshape(step.packs, step.ranks)
    held_P = np.bincount(pack[own], step.sizes(lengths[own]), minlength=step.per_step)
    mean = loads_jR.sum() / step.ranks
    return Packed(
        samples=count,
        seconds=seconds,
        peak_mib=peak / 2**20,
        idle=1 - mean / loads_jR.sum(axis=0).max(),
        floor=1 - mean / least_load(costs[own], step.ranks),
        in_slots=1 - mean / loads_jR.max(axis=1).sum(),
        carried=count - len(own),
        fullest=held_P.max() / step.tokens,
        fill=held_P.mean() / step.tokens,
    )
