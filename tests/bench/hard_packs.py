"""Packing of mixtures that are hard on time, memory or balance: one step of each, as one table.

    python -m tests.bench.hard_packs [--ranks 8 --packs 4 --tokens 144000]

Prints Markdown. Seconds are processor time of planning a step, MiB its peak of traced memory above what the samples
take. The floor is the least idle time that any placement of the step could have
(`reelweave.loader.plan.balance.least_load`).
"""

import argparse
import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, Places
from reelweave.loader.plan.balance import least_load
from reelweave.loader.plan.packing import CARRIED, PackSizes, balanced_packs, taken

_SMALLEST = 70  # tokens; so many samples wait that no step takes all


def mixtures(samples: int, tokens: int, seed: int = 0) -> dict[str, Places]:
    """Return the lengths S of each mixture's samples, int64 [samples].

    Args:
        samples: number of samples.
        tokens: M_mem; some mixtures are hard because of how their samples divide it.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    image_N = 256 + generator.integers(77, 513, samples)

    def rarely(share: float, lowest: float, highest: float) -> Places:
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


def packed(lengths: Places, step: PackSizes) -> Packed:
    """Plan one step of a stream of samples with the cost S^2."""
    costs: Floats = lengths.astype(np.float64) ** 2
    tracemalloc.start()
    began = time.process_time()
    count = taken(lengths, costs, step)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--packs", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=144_000)
    options = parser.parse_args()
    step = PackSizes(options.ranks, options.packs, options.tokens)
    columns = "mixture", "ranks x m", "samples", "s", "MiB", "idle", "floor", "idle, slots", "carried", "fill"
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, lengths in mixtures(step.per_step * step.tokens // _SMALLEST, step.tokens).items():
        found = packed(lengths, step)
        cells = (
            *(name, f"{step.ranks:,} x {step.packs}", f"{found.samples:,}"),
            *(f"{found.seconds:.3f}", f"{found.peak_mib:.0f}", f"{found.idle:.2%}", f"{found.floor:.2%}"),
            *(f"{found.in_slots:.2%}", f"{found.carried:,}", f"{found.fill:.0%}"),
        )
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
