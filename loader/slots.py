"""Steps with a barrier after every microbatch: in each slot all ranks need work of one cost.

FSDP and pipelines synchronise in every microbatch, so that a slot takes as long as its largest one. Sorting the
microbatches of a window of steps by cost and cutting them into slots makes slots even, but what is cheap is also what
holds many samples and nearly all images: one step would get them all. So the cheapest share and every image are dealt
to the steps first, each step its part; the rest is cut into slots, and slots go to the step that has fewest samples.
"""

import numpy as np

from loader.arrays import Flags, Floats, Places

_DEALT = 0.07  # of the microbatches, the cheapest: in a wide mixture they hold a third of the samples


def slotted(
    costs: Floats, samples: Places, images: Flags, ranks: int, steps: int
) -> tuple[Places, Places, Places]:
    """A step, a rank and a slot for each microbatch of a window.

    Args:
        costs: float64 [M]; M is steps x ranks x slots of a step.
        samples: int64 [M], B of each.
        images: bool [M], whether it holds images.
        ranks: of a step.
        steps: of the window.

    Returns:
        int64 [M] each: step from 0, rank, slot from 0. Every rank has one microbatch in every slot.
    """
    step = _steps(costs, samples, images, ranks, steps)
    by_step = np.lexsort((costs, step))
    place = np.arange(len(costs)) % (len(costs) // steps)
    rank, slot = np.empty_like(step), np.empty_like(step)
    rank[by_step], slot[by_step] = place % ranks, place // ranks
    return step, rank, slot


def _steps(costs: Floats, samples: Places, images: Flags, ranks: int, steps: int) -> Places:
    per_step = len(costs) // steps
    by_cost = np.argsort(costs, kind="stable")
    dealt = images.copy()
    dealt[by_cost[: round(_DEALT * len(costs))]] = True
    step = np.full(len(costs), -1)
    dealt_first = np.lexsort((costs, ~images, ~dealt))[: int(dealt.sum())]
    step[dealt_first] = _snake(len(dealt_first), steps)
    rest = by_cost[~dealt[by_cost]]
    # Each step fills up the slots that its dealt microbatches began with the cheapest of the rest.
    begun = np.bincount(step[dealt_first], minlength=steps)
    slots_begun = min(-(-int(begun.max(initial=0)) // ranks), per_step // ranks)
    missing = slots_begun * ranks - begun
    filling, rest = rest[: missing.sum()], rest[missing.sum() :]
    step[filling] = np.repeat(np.arange(steps), missing)
    held = np.bincount(step[step >= 0], weights=samples[step >= 0], minlength=steps)
    left = np.full(steps, per_step // ranks - slots_begun)
    slots = rest.reshape(-1, ranks)
    for number in np.argsort(-samples[slots].sum(axis=1), kind="stable"):
        fewest = int(np.argmin(np.where(left > 0, held, np.inf)))
        step[slots[number]] = fewest
        held[fewest] += samples[slots[number]].sum()
        left[fewest] -= 1
    return step


def _snake(count: int, steps: int) -> Places:
    """0 1 2 2 1 0 0 1 2 ...: neighbours in cost go to different steps, and none always gets the dearer one."""
    number = np.arange(count)
    place = number % steps
    return np.where(number // steps % 2 == 0, place, steps - 1 - place)
