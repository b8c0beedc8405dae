"""Check that all ranks run the same plan; different orders would deadlock."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from reelweave.loader.errors import RunError
from reelweave.train.cascade.execution.ops import CascadeOps
from reelweave.train.cascade.execution.order import Event, Open
from reelweave.train.cascade.problem import Module
from reelweave.train.distributed.world import World


def agree(world: World, events: Sequence[Event], work: CascadeOps) -> None:
    """Compare the event order and transfer sizes of all ranks; a collective.

    Raises:
        RunError: on all ranks, if plans differ; names the ranks in the minority and the first difference.
    """
    digests = world.gather_text(_digest([_plan_values(event, work) for event in events]))
    if len(set(digests)) == 1:
        return
    lines = [_line(event, work) for event in events]
    common = Counter(digests).most_common(1)[0][0]
    mismatched = [rank for rank, digest in enumerate(digests) if digest != common]
    rank_lines = world.gather_text("\n".join(lines))
    theirs, its = rank_lines[digests.index(common)].splitlines(), rank_lines[mismatched[0]].splitlines()
    index, (right, wrong) = next(
        (index, pair) for index, pair in enumerate(zip_longest(theirs, its)) if pair[0] != pair[1]
    )
    raise RunError(
        f"rank {', '.join(map(str, mismatched))} would not run the others' plan: it has {wrong or 'nothing'} at place"
        f" {index}, and they have {right or 'nothing'}; nothing was run. All ranks need the same code,"
        " configuration and costs"
    )


def _plan_values(event: Event, work: CascadeOps) -> tuple[object, ...]:
    """Return what ranks must agree upon in an event, as plain values, which are fast to write down."""
    if isinstance(event, Open):
        return (event.sample,)
    cascade = event.cascade
    both = work.input_specs(cascade), work.output_specs(cascade)
    sizes = [(tuple(part.shape), part.dtype) for parts in both for part in parts]
    return cascade.sample, int(cascade.module), event.gpus, work.owner(cascade.sample), len(both[0]), sizes


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _line(event: Event, work: CascadeOps) -> str:
    if isinstance(event, Open):
        return f"the opening of microbatch {event.sample}"
    sample, module = event.cascade
    ranks = ", ".join(map(str, event.gpus))
    detail = _digest(_plan_values(event, work))[:8]
    return f"the {Module(module).name} of microbatch {sample} on ranks {ranks} ({detail})"
