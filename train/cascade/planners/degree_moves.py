"""Annealing moves that change degrees, each with an undo log; compiled."""

import numpy as np

from reelweave.loader.base.arrays import IndexArray, IntegerArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.scheduling.list_schedule import Tables
from reelweave.train.cascade.scheduling.random_bits import Bits, below, chance
from reelweave.train.cascade.scheduling.serial import MODULES, CascadeTable

_DIT = 0.65  # share of changes to a DiT
_ALONG = 0.9  # share of these that change the other modules of the sample, too
_MORE, _MOST = 0.35, 3  # chance of another change, and the maximum per move
LOG = _MOST * MODULES
"""Maximum number of degrees that one move changes."""


@compiled
def _possible(tables: Tables, sample: int, module: int, k: int, size: int) -> bool:
    return bool(tables.degrees_K[k] <= size and tables.times_SMK[sample, module, k] < np.inf)


@compiled
def _nearest(tables: Tables, sample: int, module: int, target_k: int, size: int) -> int:
    """Return the index of the feasible degree nearest to one, the lower of two; -1 if there is none."""
    for off in range(len(tables.degrees_K)):
        for k in (target_k - off, target_k + off):
            if 0 <= k < len(tables.degrees_K) and _possible(tables, sample, module, k, size):
                return k
    return -1


@compiled
def set_degree(
    degree_SM: IndexArray, shape: CascadeTable, tables: Tables, sample: int, module: int, k: int
) -> None:
    """Set a degree with its width and time."""
    degree_SM[sample, module] = k
    if k >= 0:
        cascade = MODULES * sample + module
        shape.width_N[cascade] = tables.degrees_K[k]
        shape.seconds_N[cascade] = tables.times_SMK[sample, module, k]
        shape.k_N[cascade] = k


@compiled
def _change(
    degree_SM: IndexArray,
    shape: CascadeTable,
    tables: Tables,
    sample: int,
    module: int,
    k: int,
    log: IndexArray,
    changed: int,
) -> int:
    """Set a degree, record it in the log, and return the log's length."""
    log[changed, 0], log[changed, 1], log[changed, 2] = sample, module, degree_SM[sample, module]
    set_degree(degree_SM, shape, tables, sample, module, k)
    return changed + 1


@compiled
def undo(degree_SM: IndexArray, shape: CascadeTable, tables: Tables, log: IndexArray, changed: int) -> None:
    """Restore the degrees in a log, last first."""
    for entry in range(changed - 1, -1, -1):
        set_degree(degree_SM, shape, tables, log[entry, 0], log[entry, 1], log[entry, 2])


@compiled
def step(
    degree_SM: IndexArray,
    shape: CascadeTable,
    tables: Tables,
    order_N: IntegerArray,
    count: int,
    size: int,
    bits: Bits,
    log: IndexArray,
) -> int:
    """Move cascades of an order to the next degree, up or down, and return the log's length."""
    changed, last = 0, MODULES - 1
    for _ in range(_MOST):
        sample = order_N[below(bits, count)] // MODULES
        module = last if chance(bits) < _DIT else below(bits, last)
        way = 1 if chance(bits) < 0.5 else -1
        k = degree_SM[sample, module]
        if k >= 0:
            k += way
            while 0 <= k < len(tables.degrees_K) and not _possible(tables, sample, module, k, size):
                k += way
            if 0 <= k < len(tables.degrees_K):
                changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
                if module == last and chance(bits) < _ALONG:
                    for other in range(last):
                        if degree_SM[sample, other] >= 0:
                            near = _nearest(tables, sample, other, k, size)
                            changed = _change(degree_SM, shape, tables, sample, other, near, log, changed)
        if chance(bits) >= _MORE:
            break
    return changed


@compiled
def fit(
    degree_SM: IndexArray, shape: CascadeTable, tables: Tables, sample: int, size: int, log: IndexArray
) -> int:
    """Give a sample the degrees nearest to its own that a cell allows.

    Returns:
        The log's length n; -1 - n if the cell is too small.
    """
    changed = 0
    for module in range(MODULES):
        if degree_SM[sample, module] >= 0:
            k = _nearest(tables, sample, module, degree_SM[sample, module], size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
    return changed


@compiled
def exchange(
    degree_SM: IndexArray,
    shape: CascadeTable,
    tables: Tables,
    sample: int,
    partner: int,
    own_size: int,
    its_size: int,
    log: IndexArray,
) -> int:
    """Swap the degrees of two samples, as far as their cells allow; returns as `fit`."""
    changed = 0
    for module in range(MODULES):
        own_degree, its = degree_SM[sample, module], degree_SM[partner, module]
        if its >= 0:
            k = _nearest(tables, partner, module, own_degree if own_degree >= 0 else its, own_size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, partner, module, k, log, changed)
        if own_degree >= 0:
            k = _nearest(tables, sample, module, its if its >= 0 else own_degree, its_size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
    return changed
