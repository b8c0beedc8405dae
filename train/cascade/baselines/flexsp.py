"""FlexSP: rounds in which each sample has its own group, wide for long samples, narrow for short ones.

Wang et al., "FlexSP: Accelerating Large Language Model Training via Flexible Sequence Parallelism" (2024).
Group sizes are powers of two, chosen jointly to minimize the slowest chain; the next round starts after it.
Text encoder and VAE run in the group of their DiT.
"""

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.scheduling.static import chain, chains


def flexsp(problem: Problem) -> Schedule | None:
    """Plan as few rounds of like samples as the GPUs allow; None if not even a single sample fits."""
    degrees_J = np.array([int(k) for k in problem.degrees_K if k <= problem.gpus and k & (k - 1) == 0])
    chains_J = [chains(problem, degree) for degree in degrees_J.tolist()]
    if not chains_J:
        return None
    # A wider group is never slower, since it can leave GPUs idle.
    chain_SJ = np.stack([chain_S for _, chain_S in chains_J], axis=1)
    longest_first_S = np.argsort(-chain_SJ.min(axis=1), kind="stable")
    for rounds in range(1, problem.samples + 1):
        parts = np.array_split(longest_first_S, rounds)
        widths = [_round(chain_SJ[part], degrees_J, problem.gpus) for part in parts]
        if all(width is not None for width in widths):
            break
    else:
        return None
    runs: list[Run] = []
    start_s = 0.0
    for part, width in zip(parts, widths, strict=True):
        assert width is not None
        first = 0
        for sample, j in zip(part.tolist(), width.tolist(), strict=True):
            group = range(first, first + int(degrees_J[j]))
            runs.extend(chain(problem, sample, chains_J[j][0][sample], start_s, group))
            first = group.stop
        start_s += float(chain_SJ[part, width].max())
    return Schedule.of(runs, problem.gpus)


def _round(chain_RJ: Floats, degrees_J: IndexArray, gpus: int) -> IndexArray | None:
    """Return degree indices for one round's samples, int64 [R]; None if the GPUs do not suffice.

    The optimum equals the time of some chain, so that bisection over these times is exact.
    """
    limits = np.unique(chain_RJ[np.isfinite(chain_RJ)])
    best = None
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        fits_RJ = chain_RJ <= limits[middle]
        width_R = np.asarray(fits_RJ.argmax(axis=1))
        if fits_RJ.any(axis=1).all() and degrees_J[width_R].sum() <= gpus:
            best, high = width_R, middle
        else:
            low = middle + 1
    return best
