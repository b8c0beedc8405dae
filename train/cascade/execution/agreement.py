"""Check that all ranks run the same plan; different orders would deadlock."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from loader.errors import RunError
from train.cascade.execution.ops import CascadeOps
from train.cascade.execution.order import Event, Open
from train.cascade.problem import Module
from train.distributed.world import World


def agree(world: World, events: Sequence[Event], work: CascadeOps) -> None:
    """Compare the event order and transfer sizes of all ranks; a collective.

    Raises:
        RunError: on all ranks, if plans differ; names the ranks in the minority and the first difference.
    """
    lines = [_line(event, work) for event in events]
    digests = world.gather_text(hashlib.sha256("\n".join(lines).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    common = Counter(digests).most_common(1)[0][0]
    others = [rank for rank, digest in enumerate(digests) if digest != common]
    told = world.gather_text("\n".join(lines))
    theirs, its = told[digests.index(common)].splitlines(), told[others[0]].splitlines()
    place, (right, wrong) = next(
        (place, pair) for place, pair in enumerate(zip_longest(theirs, its)) if pair[0] != pair[1]
    )
    raise RunError(
        f"rank {', '.join(map(str, others))} would not run the others' plan: it has {wrong or 'nothing'} at place"
        f" {place}, and they have {right or 'nothing'}; nothing was run. All ranks need the same code,"
        " configuration and costs"
    )


def _line(event: Event, work: CascadeOps) -> str:
    if isinstance(event, Open):
        return f"the opening of microbatch {event.sample}"
    sample, module = event.cascade
    sizes = [
        [tuple(part) for part in parts]
        for parts in (work.input_specs(event.cascade), work.output_specs(event.cascade))
    ]
    detail = hashlib.sha256(repr((work.owner(sample), sizes)).encode()).hexdigest()[:8]
    ranks = ", ".join(map(str, event.gpus))
    return f"the {Module(module).name} of microbatch {sample} on ranks {ranks} ({detail})"
