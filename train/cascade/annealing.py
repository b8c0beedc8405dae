"""Simulated annealing of samples in cells of GPUs: the moves, compiled.

A cell is a block of GPUs with a few samples, whose cascades are laid in an order (`serial`). A move changes one or two
cells, so judging it takes less than a microsecond; and the energy sum(exp(SHARPNESS * (makespan / T - 1))) over the
cells notices every cell, where the makespan of the whole schedule says nothing of most moves.
"""

import math
from typing import NamedTuple

import numpy as np

from loader.arrays import Floats, Places
from train.cascade.compiled import compiled
from train.cascade.serial import MODULES, Scratch, Shape, lay

SHARPNESS = 150.0
_WITHIN = 0.6  # share of the moves that change one cell; the others change two
_DEGREES = 0.5  # share of those that change degrees; the others change the order
_ALIKE, _SWAP = 0.75, 0.93  # up to here samples of like size change cells, then any two; then one goes
_MORE = 0.5  # after a change of a degree, another
_ALSO = 0.2  # with a change of cells, a degree; with a degree, the order
_JUMP = 0.3  # share of the changes of a degree that go to any; the others to the next
_LOG = 24  # degrees that one move can change


class State(NamedTuple):
    """What moves change.

    Attributes:
        order_CN: cascades of each cell, each as MODULES * sample + module, in the order in which they are laid; all M of
            a sample, int64 [C, N].
        count_C: how many there are, int64 [C].
        degree_SM: place of each cascade's degree in ``degrees_K``, -1 where a sample has no such module, int64 [S, M].
    """

    order_CN: Places
    count_C: Places
    degree_SM: Places


class Tables(NamedTuple):
    """A problem as moves want it.

    Attributes:
        times_SMK: of the problem.
        degrees_K: of the problem.
    """

    times_SMK: Floats
    degrees_K: Places


class Cooling(NamedTuple):
    """How long and how boldly.

    Attributes:
        moves: at most.
        first: temperature at the first move, in units of the logarithm of the energy.
        last: and at the last one.
        enough_s: a makespan at which to stop.
        seed: of the moves.
    """

    moves: int
    first: float
    last: float
    enough_s: float
    seed: int


class Trial(NamedTuple):
    """A move before it is accepted.

    Attributes:
        own_N: new order of one cell.
        its_N: and of the other.
        log: degrees that it changed: sample, module, old place.
    """

    own_N: Places
    its_N: Places
    log: Places


@compiled
def anneal(
    state: State, tables: Tables, size_C: Places, target_s: float, cooling: Cooling, scratch: Scratch
) -> float:
    """Changes a state to the best that was found, and returns its makespan.

    Args:
        state: to begin with.
        tables: of the problem.
        size_C: GPUs of each cell; its samples must fit.
        target_s: T of the energy, such as the lower bound.
        cooling: how long.
        scratch: of the problem.
    """
    np.random.seed(cooling.seed)
    order_CN, count_C, degree_SM = state
    samples = len(degree_SM)
    cells, room = order_CN.shape
    shape = Shape(np.zeros(samples * MODULES, np.int64), np.zeros(samples * MODULES))
    for sample in range(samples):
        for module in range(MODULES):
            _set(degree_SM, shape, tables, sample, module, degree_SM[sample, module])
    by_size_S, rank_S = _ranked(tables)
    cell_S, makespan_C = np.empty(samples, np.int64), np.empty(cells)
    for cell in range(cells):
        for place in range(count_C[cell]):
            cell_S[order_CN[cell, place] // MODULES] = cell
        makespan_C[cell] = lay(order_CN[cell], count_C[cell], shape, size_C[cell], np.inf, scratch)
    energy_C = np.array([_energy(makespan_s, target_s) for makespan_s in makespan_C])
    best_s = makespan_C.max()
    best = (order_CN.copy(), count_C.copy(), degree_SM.copy())
    trial = Trial(np.empty(room, np.int64), np.empty(room, np.int64), np.empty((_LOG, 3), np.int64))
    own_N, its_N, log = trial
    heat, cools = cooling.first, (cooling.last / cooling.first) ** (1 / max(cooling.moves, 1))
    for _ in range(cooling.moves):
        heat *= cools
        if best_s <= cooling.enough_s:
            break
        own, other = np.random.randint(cells), np.random.randint(cells)
        if makespan_C[other] > makespan_C[own]:
            own = other
        own_count, its_count = count_C[own], 0
        if own_count == 0:
            continue
        sample = order_CN[own, np.random.randint(own_count)] // MODULES
        kind = np.random.random()
        changed, partner, within = 0, -1, cells == 1 or kind < _WITHIN
        if within:
            _copy(order_CN[own], own_count, own_N)
            if np.random.random() < _DEGREES:
                while changed < 8 and (changed == 0 or np.random.random() < _MORE):
                    before = changed
                    changed = _kick(degree_SM, shape, tables, own_N, own_count, size_C[own], log, changed)
                    if changed == before:
                        break
                if changed == 0:
                    continue
                if np.random.random() < _ALSO:
                    _reorder(own_N, own_count)
            else:
                _reorder(own_N, own_count)
        else:
            goes = kind >= _SWAP
            if kind < _ALIKE:
                near = rank_S[sample] + np.random.randint(1, 5) * (1 if np.random.random() < 0.5 else -1)
                if near < 0 or near >= samples:
                    continue
                partner = by_size_S[near]
                other = cell_S[partner]
            elif not goes:
                partner = np.random.randint(samples)
                other = cell_S[partner]
            else:
                other = np.random.randint(cells)
            if other == own:
                continue
            its_count = count_C[other]
            if goes:
                if its_count + MODULES > room:
                    continue
                own_count = _without(order_CN[own], own_count, sample, own_N)
                its_count = _with(order_CN[other], its_count, sample, its_N)
                changed = _follow(degree_SM, shape, tables, sample, sample, size_C[other], log, 0)
            else:
                _replaced(order_CN[own], own_count, sample, partner, own_N)
                _replaced(order_CN[other], its_count, partner, sample, its_N)
                changed = _exchange(
                    degree_SM, shape, tables, sample, partner, size_C[own], size_C[other], log
                )
            if changed < 0:
                _undo(degree_SM, shape, tables, log, -changed - 1)
                continue
            if np.random.random() < _ALSO and own_count > 0:
                changed = _kick(degree_SM, shape, tables, own_N, own_count, size_C[own], log, changed)
            if np.random.random() < _ALSO:
                changed = _kick(degree_SM, shape, tables, its_N, its_count, size_C[other], log, changed)

        allowed = -math.log(np.random.random() + 1e-300) * heat
        energy = energy_C[own]
        if not within:
            energy += energy_C[other]
        energy = energy * math.exp(allowed) + allowed
        limit_s = _makespan(energy, target_s)
        own_s = lay(own_N, own_count, shape, size_C[own], limit_s, scratch)
        its_s, own_energy = own_s, 0.0
        if own_s < np.inf:
            own_energy = _energy(own_s, target_s)
        if not within and own_s < np.inf:
            limit_s = _makespan(energy - own_energy, target_s)
            its_s = lay(its_N, its_count, shape, size_C[other], limit_s, scratch)
        if its_s == np.inf:
            _undo(degree_SM, shape, tables, log, changed)
            continue

        _copy(own_N, own_count, order_CN[own])
        makespan_C[own], count_C[own], energy_C[own] = own_s, own_count, own_energy
        if not within:
            _copy(its_N, its_count, order_CN[other])
            makespan_C[other], count_C[other] = its_s, its_count
            energy_C[other] = _energy(its_s, target_s)
            cell_S[sample] = other
            if partner >= 0:
                cell_S[partner] = own
        if own_s < best_s and makespan_C.max() < best_s - 1e-9:
            best_s = makespan_C.max()
            best[0][:], best[1][:], best[2][:] = order_CN, count_C, degree_SM
    order_CN[:], count_C[:], degree_SM[:] = best
    return float(best_s)


@compiled
def _ranked(tables: Tables) -> tuple[Places, Places]:
    """Samples by the least work of their DiT, and the place of each among them."""
    samples = len(tables.times_SMK)
    least_S = np.empty(samples)
    for sample in range(samples):
        least_S[sample] = (tables.times_SMK[sample, -1] * tables.degrees_K).min()
    by_size_S = np.argsort(least_S)
    rank_S = np.empty(samples, np.int64)
    for number in range(samples):
        rank_S[by_size_S[number]] = number
    return by_size_S, rank_S


@compiled
def _energy(makespan_s: float, target_s: float) -> float:
    return math.exp(min(SHARPNESS * (makespan_s / target_s - 1), 600.0))


@compiled
def _makespan(energy: float, target_s: float) -> float:
    """The inverse of `_energy`."""
    return target_s * (1 + math.log(energy) / SHARPNESS) if energy > 0 else 0.0


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
def _set(degree_SM: Places, shape: Shape, tables: Tables, sample: int, module: int, k: int) -> None:
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
    _set(degree_SM, shape, tables, sample, module, k)
    return changed + 1


@compiled
def _undo(degree_SM: Places, shape: Shape, tables: Tables, log: Places, changed: int) -> None:
    for entry in range(changed - 1, -1, -1):
        _set(degree_SM, shape, tables, log[entry, 0], log[entry, 1], log[entry, 2])


@compiled
def _kick(
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    order_N: Places,
    count: int,
    size: int,
    log: Places,
    changed: int,
) -> int:
    """Another degree for a cascade of an order, mostly the next; a DiT takes its other modules with it at times."""
    sample = order_N[np.random.randint(count)] // MODULES
    last = MODULES - 1
    module = last if last == 0 or np.random.random() < 0.65 else np.random.randint(last)
    old = degree_SM[sample, module]
    if old < 0:
        return changed
    way = 1 if np.random.random() < 0.5 else -1
    k = np.random.randint(len(tables.degrees_K)) if np.random.random() < _JUMP else old + way
    while 0 <= k < len(tables.degrees_K) and not _possible(tables, sample, module, k, size):
        k += way
    if k < 0 or k >= len(tables.degrees_K) or k == old:
        return changed
    changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
    if module == last and np.random.random() < 0.5:
        for other in range(last):
            if degree_SM[sample, other] >= 0:
                k = _nearest(tables, sample, other, degree_SM[sample, last], size)
                changed = _change(degree_SM, shape, tables, sample, other, k, log, changed)
    return changed


@compiled
def _follow(
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    sample: int,
    model: int,
    size: int,
    log: Places,
    changed: int,
) -> int:
    """Gives a sample degrees like those of another, as a cell allows.

    Returns:
        The length of the log; -1 - it where the cell is too small.
    """
    for module in range(MODULES):
        if degree_SM[sample, module] >= 0:
            wanted = degree_SM[model, module]
            if wanted < 0:
                wanted = degree_SM[model, MODULES - 1]
            k = _nearest(tables, sample, module, wanted, size)
            if k < 0:
                return -1 - changed
            changed = _change(degree_SM, shape, tables, sample, module, k, log, changed)
    return changed


@compiled
def _exchange(
    degree_SM: Places,
    shape: Shape,
    tables: Tables,
    sample: int,
    partner: int,
    own_size: int,
    its_size: int,
    log: Places,
) -> int:
    """Two samples change degrees, with the result of `_follow`."""
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


@compiled
def _copy(order_N: Places, count: int, found_N: Places) -> None:
    # A loop: an assignment of slices costs more than the ten numbers.
    for place in range(count):
        found_N[place] = order_N[place]


@compiled
def _reorder(order_N: Places, count: int) -> None:
    """Takes one cascade out and puts it elsewhere, or exchanges two."""
    place, other = np.random.randint(count), np.random.randint(count)
    cascade = order_N[place]
    if np.random.random() < 0.5:
        order_N[place], order_N[other] = order_N[other], cascade
        return
    way = 1 if other > place else -1
    while place != other:
        order_N[place] = order_N[place + way]
        place += way
    order_N[other] = cascade


@compiled
def _replaced(order_N: Places, count: int, sample: int, partner: int, found_N: Places) -> None:
    """Another sample in the place of one."""
    for place in range(count):
        cascade = order_N[place]
        found_N[place] = cascade + MODULES * (partner - sample) if cascade // MODULES == sample else cascade


@compiled
def _without(order_N: Places, count: int, sample: int, found_N: Places) -> int:
    found = 0
    for place in range(count):
        if order_N[place] // MODULES != sample:
            found_N[found] = order_N[place]
            found += 1
    return found


@compiled
def _with(order_N: Places, count: int, sample: int, found_N: Places) -> int:
    """One sample more, anywhere."""
    at = np.random.randint(count + 1)
    _copy(order_N, at, found_N)
    for module in range(MODULES):
        found_N[at + module] = MODULES * sample + module
    for place in range(at, count):
        found_N[place + MODULES] = order_N[place]
    return count + MODULES
