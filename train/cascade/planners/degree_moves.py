"""Moves of the annealing that change degrees, each with a log from which it can be undone; compiled."""

import numpy as np

from loader.base.arrays import Numbers, Places
from train.cascade.scheduling.compiled import compiled
from train.cascade.scheduling.draws import Bits, below, chance
from train.cascade.scheduling.list_schedule import Tables
from train.cascade.scheduling.serial import MODULES, Shape

_DIT = 0.65  # share of the changes that are a DiT's
_ALONG = 0.9  # share of these that take its other modules along
_MORE, _MOST = 0.35, 3  # after a change another one, and how many in a move
LOG = _MOST * MODULES
"""Degrees that one move can change."""


@compiled
def _possible(tables: Tables, sample: int, module: int, k: int, size: int) -> bool:
    return bool(tables.degrees_K[k] <= size and tables.times_SMK[sample, module, k] < np.inf)


@compiled
def _nearest(tables: Tables, sample: int, module: int, wanted: int, size: int) -> int:
    """The place of the possible degree that is nearest to one, the lower of two; -1 where there is none."""
    for off in range(len(tables.degrees_K)):
        for k in (wanted - off, wanted + off):
            if 0 <= k < len(tables.degrees_K) and _possible(tables, sample, module, k, size):
                return k
    return -1


@compiled
def set_degree(degree_SM: Places, shape: Shape, tables: Tables, sample: int, module: int, k: int) -> None:
    """Sets a degree and what it takes."""
    degree_SM[sample, module] = k
    if k >= 0:
        cascade = MODULES * sample + module
        shape.width_N[cascade] = tables.degrees_K[k]
        shape.seconds_N[cascade] = tables.times_SMK[sample, module, k]


@compiled
def _change(
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    sample: int,
    module: int,
    k: int,
    log: Places,
    changed: int,
) -> int:
    """Sets a degree such that it can be undone; the length of the log."""
    log[changed, 0], log[changed, 1], log[changed, 2] = sample, module, degree_SM[sample, module]
    set_degree(degree_SM, shape, tables, sample, module, k)
    return changed + 1


@compiled
def undo(degree_SM: Places, shape: Shape, tables: Tables, log: Places, changed: int) -> None:
    """Sets the degrees of a log back, the last one first."""
    for entry in range(changed - 1, -1, -1):
        set_degree(degree_SM, shape, tables, log[entry, 0], log[entry, 1], log[entry, 2])


@compiled
def step(
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    order_N: Numbers,
    count: int,
    size: int,
    bits: Bits,
    log: Places,
) -> int:
    """The next degree, up or down, for one or more cascades of an order; the length of the log."""
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
def fit(degree_SM: Places, shape: Shape, tables: Tables, sample: int, size: int, log: Places) -> int:
    """Degrees of a sample that a cell allows, as near as can be to those that it has.

    Returns:
        The length of the log; -1 - it where the cell is too small.
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
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    sample: int,
    partner: int,
    own_size: int,
    its_size: int,
    log: Places,
) -> int:
    """Two samples change degrees, as near as their cells allow, with the result of `fit`."""
    changed = 0
    for module in range(MODULES):
        own, its = degree_SM[sample, module], degree_SM[partner, module]
        if its >= 0:
            k = _nearest(tables, partner, module, own if own >= 0 else its, own_size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, partner, module, k, log, changed)
        if own >= 0:
            k = _nearest(tables, sample, module, its if its >= 0 else own, its_size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
    return changed
