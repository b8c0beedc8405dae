"""Plans made by one process of a machine and memory-mapped by the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IntegerArray
from reelweave.loader.base.shared.node_files import Arrays, NodeFiles
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.plan.epoch_plan import EpochPlan
from reelweave.loader.plan.microbatch_table import MicrobatchTable
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.plan.shuffle import Permuted


def shared_plan(
    node: NodeFiles, name: str, assignment: Assignment, layout: StepLayout, make: Callable[[], EpochPlan]
) -> EpochPlan:
    """Return the plan of ``make``, which runs in one process of this machine.

    Args:
        node: files shared by the machine's processes.
        name: name that identifies the plan.
        assignment: bucket assignment of the plan.
        layout: step layout of the plan.
        make: function that makes the plan.
    """
    arrays = node.arrays(name, lambda: _columns(make()))
    fillers, carried = arrays["facts"].tolist()
    return EpochPlan(
        assignment=assignment,
        draws=Draws(
            arrays["rows"], *(_spread(arrays[name], len(arrays["rows"])) for name in ("passes", "leaf"))
        ),
        order=_order(arrays, "order"),
        table=MicrobatchTable(*(arrays[f"pieces.{name}"] for name in MicrobatchTable._fields)),
        turns=_order(arrays, "turns"),
        fillers=fillers,
        carried=carried,
        layout=layout,
        shared=(node, name),
    )


def _columns(plan: EpochPlan) -> Arrays:
    return {
        "rows": plan.draws.rows,
        "passes": _narrow(plan.draws.passes),
        "leaf": _narrow(plan.draws.leaf),
        "facts": np.array([plan.fillers, plan.carried], np.int64),
        **{f"pieces.{name}": values for name, values in plan.table._asdict().items()},
        **_order_columns("order", plan.order),
        **_order_columns("turns", plan.turns),
    }


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return one entry for arrays broadcast from a single value in memory."""
    return values[:1] if values.strides == (0,) else values


def _spread(values: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(values, (count,)) if len(values) == 1 else values


def _order_columns(name: str, order: IntegerArray | Permuted) -> Arrays:
    if not isinstance(order, Permuted):
        return {name: order}
    facts = (order.seed, order.number, order.purpose, order.run, order.fillers, order.last)
    members = {} if order.members is None else {f"{name}.members": order.members}
    return {f"{name}.facts": np.array(facts, np.uint64), f"{name}.starts": order.starts, **members}


def _order(arrays: Arrays, name: str) -> IntegerArray | Permuted:
    if name in arrays:
        return arrays[name]
    seed, counter, purpose, run, fillers, last = arrays[f"{name}.facts"].tolist()
    members = arrays.get(f"{name}.members")
    return Permuted(seed, counter, purpose, arrays[f"{name}.starts"], members, run, fillers, last)
