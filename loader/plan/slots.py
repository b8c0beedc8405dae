"""Steps with a barrier after every microbatch: in each slot all ranks need microbatches of equal cost.

FSDP and pipelines synchronize in every microbatch, so a slot takes as long as its largest microbatch. A microbatch may
run up to r = lookahead - 1 steps before or after its own in the stream. So a cost level needs a slot only
once in 2r + 1 steps. There are (2r + 1) x m levels: many narrow ones. They are filled from the dearest down,
each slot with the dearest microbatches left within r steps of it. Cheap microbatches hold many samples and
nearly all images. To keep the composition of steps, images stay in their steps, with as few of the cheapest
others as necessary. Levels are combined such that all steps have nearly equal numbers of samples.
"""

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray

_STAY = (0, 0.01, 0.02, 0.03, 0.05, 0.08)  # candidate shares of the microbatches, the cheapest, that stay
_SPREAD = 1.15  # maximum variation of composition over the steps, relative to the stream's own


def assign_slots(
    costs: Floats, samples: IndexArray, images: Flags, ranks: int, steps: int, lookahead: int
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return a step, a rank and a slot for each microbatch of some steps.

    Args:
        costs: float64 [M], in stream order; M is steps x ranks x slots of a step.
        samples: int64 [M], B of each microbatch.
        images: bool [M], True for microbatches of images; the rarer kind, images or videos, stays in its steps.
        ranks: number of ranks.
        steps: number of steps planned together; the more, the better, since the choice is small near both ends.
        lookahead: window in steps; every microbatch runs fewer steps before or after its own.

    Returns:
        int64 [M] each: step from 0, rank, slot from 0. Every rank has one microbatch in every slot.
    """
    step = _steps(costs, samples, images, ranks, steps, min(lookahead, steps) - 1)
    by_step = np.lexsort((costs, step))
    slot_index = np.arange(len(costs)) % (len(costs) // steps)
    rank, slot = np.empty_like(step), np.empty_like(step)
    rank[by_step], slot[by_step] = slot_index % ranks, slot_index // ranks
    return step, rank, slot


def _steps(
    costs: Floats, samples: IndexArray, images: Flags, ranks: int, steps: int, reach: int
) -> IndexArray:
    """Return each microbatch's step; as few microbatches stay as the composition allows."""
    step = own_step = np.arange(len(costs)) // (len(costs) // steps)
    rare = images if 2 * images.sum() <= len(images) else ~images
    dearest_first = np.argsort(-costs, kind="stable")
    dearest_first = dearest_first[~rare[dearest_first]]
    allowed = _SPREAD * _spreads(own_step, samples, rare)
    for stay in _STAY:
        moving = dearest_first[: max(len(dearest_first) - round(stay * len(costs)), 0)]
        count = np.bincount(own_step[moving], minlength=steps)
        phases, uneven = _phases(samples[moving], count / ranks, reach)
        if uneven > allowed[0] and stay < _STAY[-1]:
            continue
        step = _fill_steps(costs, own_step, moving, phases, ranks, reach)
        if (_spreads(step, samples, rare) <= allowed).all():
            break
    return step


def _spreads(step: IndexArray, samples: IndexArray, rare: Flags) -> Floats:
    """Return standard deviations over the steps: of the samples, and of the share of the rarer kind."""
    held = np.bincount(step, samples)
    return np.array([held.std(), (np.bincount(step, samples * rare) / held).std()])


def _phases(samples: IndexArray, rows_N: Floats, reach: int) -> tuple[IndexArray, float]:
    """Return the first step of each level's slots, [rows, period] with the dearest first, and their unevenness.

    Args:
        samples: B of the moving microbatches, dearest first.
        rows_N: moving microbatches per rank, in each step.
        reach: r, the maximum distance in steps.
    """
    steps = len(rows_N)
    period = min(2 * reach + 1, steps)
    share_R = np.clip(rows_N - np.arange(np.ceil(rows_N.max()))[:, None], 0, 1).mean(axis=1)
    ends = np.cumsum(np.repeat(share_R, period))
    ends = np.round(ends * len(samples) / max(ends[-1:].sum(), 1)).astype(np.int64)
    reached = np.concatenate([[0], np.cumsum(samples)])[np.concatenate([[0], ends])]
    held_RT = np.diff(reached).reshape(-1, period) * period / steps
    phase_RT = np.tile(np.arange(period), (len(held_RT), 1))
    of_step = np.zeros(period)
    placed_RT = np.zeros_like(held_RT)
    # Each row in turn puts its largest level into the step where the other rows have fewest samples.
    for _ in range(8):
        for row in reversed(range(len(held_RT))):
            of_step -= placed_RT[row]
            phase_RT[row, np.argsort(-held_RT[row], kind="stable")] = np.argsort(of_step, kind="stable")
            placed_RT[row, phase_RT[row]] = held_RT[row]
            of_step += placed_RT[row]
    return phase_RT, float(of_step.std())


def _fill_steps(
    costs: Floats, own_step: IndexArray, moving: IndexArray, phase_RT: IndexArray, ranks: int, reach: int
) -> IndexArray:
    """Return the step of each microbatch."""
    step = own_step.copy()
    steps, last = int(own_step[-1]) + 1, int(own_step[-1])
    queue = moving[np.argsort(own_step[moving], kind="stable")]  # by step, dearest first
    cost = costs[queue]
    count = np.bincount(own_step[queue], minlength=steps)
    ends = np.cumsum(count)
    heads = ends - count
    # Cumulative sums over the steps: waiting microbatches, and room; room is padded by r steps at both ends.
    waiting = np.cumsum(count)
    room = np.pad(waiting, (reach, reach), constant_values=(0, waiting[-1]))
    remaining = count.copy()
    for phase_T in phase_RT:
        for phase in phase_T.tolist():
            for now in range(phase, steps, len(phase_T)):
                if (size := min(ranks, remaining.item(now))) == 0:
                    continue
                first, behind = max(now - reach, 0), min(now + reach, last) + 1
                near = [cost[heads[at] : min(heads[at] + size, ends[at])] for at in range(first, behind)]
                remaining[now] -= size
                room[now + reach :] -= size
                # The remaining room must hold all waiting microbatches, in order, within r steps of their own.
                min_taken = waiting[first:behind] - room[first + 2 * reach : behind + 2 * reach]
                max_taken = waiting[first:behind] - room[first:behind]
                cumulative = np.maximum(_dearest(near, size), np.maximum.accumulate(min_taken))
                cumulative = np.minimum(cumulative, np.minimum.accumulate(max_taken[::-1])[::-1])
                for at, num_taken in enumerate(np.diff(cumulative, prepend=0).tolist(), first):
                    step[queue[heads[at] : heads[at] + num_taken]] = now
                    heads[at] += num_taken
                waiting[first:behind] -= cumulative
                waiting[behind:] -= size
    return step


def _dearest(costs: list[Floats], size: int) -> IndexArray:
    """Return how many of the ``size`` dearest come from the first list, from the first two lists, and so on."""
    together = np.concatenate(costs)
    cheapest = np.partition(together, len(together) - size)[len(together) - size]
    before = np.cumsum([len(some) for some in costs])
    dearer = np.concatenate([[0], np.cumsum(together > cheapest)])[before]
    equal = np.concatenate([[0], np.cumsum(together == cheapest)])[before]
    first: IndexArray = dearer + np.minimum(equal, size - dearer[-1])
    return first
