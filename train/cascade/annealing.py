"""Simulated annealing of lists of samples in cells of GPUs: the moves, compiled.

A cell is a block of GPUs with a list of a few samples (`train.cascade.list_schedule`). A move changes the lists of one
or two cells, so judging it takes a microsecond, and the energy sum(exp(sharpness * (makespan / T - 1))) over the
cells notices every cell, not the last one alone: a schedule's makespan by itself says nothing of most moves.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from loader.arrays import Floats, Places
from train.cascade.compiled import compiled
from train.cascade.list_schedule import Scratch, Tables, place


class State(NamedTuple):
    """What moves change.

    Attributes:
        list_CP: samples of each cell, those that go first at the beginning, int64 [C, P].
        count_C: how many there are, int64 [C].
        degree_SM: place of each cascade's degree, -1 where there is none, int64 [S, M].
    """

    list_CP: Places
    count_C: Places
    degree_SM: Places

    def copy(self) -> "State":
        """One that keeps what it is."""
        return State(self.list_CP.copy(), self.count_C.copy(), self.degree_SM.copy())


class Cooling(NamedTuple):
    """How long and how boldly.

    Attributes:
        moves: at most.
        sharpness: of the energy.
        first: inverse temperature at the first move.
        last: and at the last one.
        enough_s: a makespan at which to stop.
        seed: of the moves.
    """

    moves: int
    sharpness: float
    first: float
    last: float
    enough_s: float
    seed: int


@compiled
def anneal(state: State, tables: Tables, size_C: Places, target_s: float, cooling: Cooling, scratch: Scratch) -> float:
    """Changes a state to the best that was found, and returns its makespan.

    Args:
        state: to begin with.
        tables: of the problem.
        size_C: GPUs of each cell; every sample of it must fit.
        target_s: T of the energy, such as the lower bound.
        cooling: how long.
        scratch: for the longest list.
    """
    np.random.seed(cooling.seed)
    lists, counts, degrees = state
    cells, longest = lists.shape
    samples = len(degrees)
    by_size, rank = _ranked(tables)
    cell_of = np.empty(samples, np.int64)
    makespan_C = np.empty(cells)
    for cell in range(cells):
        for number in range(counts[cell]):
            cell_of[lists[cell, number]] = cell
        makespan_C[cell] = place(lists[cell], counts[cell], degrees, tables, size_C[cell], np.inf, scratch)
    best_s = makespan_C.max()
    best = (lists.copy(), counts.copy(), degrees.copy())
    before = np.empty((2, 3), np.int64)
    for move in range(cooling.moves):
        if best_s <= cooling.enough_s:
            break
        heat = cooling.first * (cooling.last / cooling.first) ** (move / cooling.moves)
        cell, other = np.random.randint(cells), np.random.randint(cells)
        if makespan_C[other] > makespan_C[cell]:
            cell = other
        if counts[cell] == 0:
            continue
        number = np.random.randint(counts[cell])
        sample = lists[cell, number]
        kind = np.random.random()
        allowed = -math.log(np.random.random() + 1e-300) * heat
        if kind < 0.6 or cells == 1:
            # Within the cell: a degree, or two places in the list.
            swapped = number
            before[0] = degrees[sample]
            if kind < 0.4:
                module = 2 if kind < 0.27 else 1
                if not _step(degrees, tables, sample, module, size_C[cell]):
                    continue
                if module == 2 and np.random.random() < 0.5 and degrees[sample, 1] >= 0:
                    degrees[sample, 1] = _nearest(tables, sample, 1, degrees[sample, 2], size_C[cell])
            else:
                swapped = np.random.randint(counts[cell])
                if swapped == number:
                    continue
                lists[cell, number], lists[cell, swapped] = lists[cell, swapped], sample
            energy = _energy(makespan_C[cell], target_s, cooling.sharpness)
            limit_s = _inverse_energy(energy * math.exp(allowed) + allowed, target_s, cooling.sharpness)
            found_s = place(lists[cell], counts[cell], degrees, tables, size_C[cell], limit_s, scratch)
            if found_s == np.inf:
                degrees[sample] = before[0]
                if swapped != number:
                    lists[cell, swapped], lists[cell, number] = lists[cell, number], sample
                continue
            makespan_C[cell] = found_s
        else:
            # Between cells: a sample goes to another, or changes places with one of about its size.
            if kind < 0.9:
                near = rank[sample] + np.random.randint(1, 5) * (1 if np.random.random() < 0.5 else -1)
                if near < 0 or near >= samples:
                    continue
                partner = by_size[near]
            else:
                partner = by_size[np.random.randint(samples)]
            other = cell_of[partner]
            goes = kind >= 0.97 and counts[other] < longest
            if other == cell or not _fits(degrees, tables, sample, size_C[other]):
                continue
            if not goes and not _fits(degrees, tables, partner, size_C[cell]):
                continue
            before[0], before[1] = degrees[sample], degrees[partner]
            place_there = 0
            while lists[other, place_there] != partner:
                place_there += 1
            if goes:
                for later in range(number, counts[cell] - 1):
                    lists[cell, later] = lists[cell, later + 1]
                counts[cell] -= 1
                lists[other, counts[other]] = sample
                counts[other] += 1
                _take(degrees, tables, sample, before[0], size_C[other])
            else:
                lists[cell, number], lists[other, place_there] = partner, sample
                _take(degrees, tables, partner, before[0], size_C[cell])
                _take(degrees, tables, sample, before[1], size_C[other])
            energy = _energy(makespan_C[cell], target_s, cooling.sharpness)
            energy += _energy(makespan_C[other], target_s, cooling.sharpness)
            energy = energy * math.exp(allowed) + allowed
            limit_s = _inverse_energy(energy, target_s, cooling.sharpness)
            found_s = place(lists[cell], counts[cell], degrees, tables, size_C[cell], limit_s, scratch)
            there_s = np.inf
            if found_s < np.inf:
                energy -= _energy(found_s, target_s, cooling.sharpness)
                limit_s = _inverse_energy(energy, target_s, cooling.sharpness)
                there_s = place(lists[other], counts[other], degrees, tables, size_C[other], limit_s, scratch)
            if there_s == np.inf:
                degrees[sample], degrees[partner] = before[0], before[1]
                if goes:
                    counts[other] -= 1
                    for later in range(counts[cell], number, -1):
                        lists[cell, later] = lists[cell, later - 1]
                    counts[cell] += 1
                    lists[cell, number] = sample
                else:
                    lists[cell, number], lists[other, place_there] = sample, partner
                continue
            makespan_C[cell], makespan_C[other] = found_s, there_s
            cell_of[sample] = other
            if not goes:
                cell_of[partner] = cell
        found_s = makespan_C.max()
        if found_s < best_s - 1e-9:
            best_s = found_s
            best[0][:], best[1][:], best[2][:] = lists, counts, degrees
    lists[:], counts[:], degrees[:] = best[0], best[1], best[2]
    return best_s


@compiled
def _ranked(tables: Tables) -> Any:
    """Samples by the least work of their DiT, and the place of each among them."""
    samples = len(tables.times_SMK)
    least = np.empty(samples)
    for sample in range(samples):
        least[sample] = (tables.times_SMK[sample, 2] * tables.degrees_K).min()
    by_size = np.argsort(least)
    rank = np.empty(samples, np.int64)
    for number in range(samples):
        rank[by_size[number]] = number
    return by_size, rank


@compiled
def _energy(makespan_s: float, target_s: float, sharpness: float) -> float:
    return math.exp(min(sharpness * (makespan_s / target_s - 1), 600.0))


@compiled
def _inverse_energy(energy: float, target_s: float, sharpness: float) -> float:
    """The makespan of an energy."""
    return target_s * (1 + math.log(energy) / sharpness) if energy > 0 else 0.0


@compiled
def _possible(tables: Tables, sample: int, module: int, k: int, size: int) -> bool:
    return tables.degrees_K[k] <= size and tables.times_SMK[sample, module, k] < np.inf


@compiled
def _fits(degrees: Places, tables: Tables, sample: int, size: int) -> bool:
    """Whether all modules of a sample fit into a cell."""
    for module in range(3):
        if degrees[sample, module] >= 0 and _nearest(tables, sample, module, 0, size) < 0:
            return False
    return True


@compiled
def _step(degrees: Places, tables: Tables, sample: int, module: int, size: int) -> bool:
    """The next higher or lower degree; False where there is none."""
    k = degrees[sample, module]
    if k < 0:
        return False
    way = 1 if np.random.random() < 0.5 else -1
    k += way
    while 0 <= k < len(tables.degrees_K):
        if _possible(tables, sample, module, k, size):
            degrees[sample, module] = k
            return True
        k += way
    return False


@compiled
def _nearest(tables: Tables, sample: int, module: int, wanted: int, size: int) -> int:
    """The place of the possible degree that is nearest to one, the lower of two."""
    for off in range(len(tables.degrees_K)):
        for k in (wanted - off, wanted + off):
            if 0 <= k < len(tables.degrees_K) and _possible(tables, sample, module, k, size):
                return k
    return -1


@compiled
def _take(degrees: Places, tables: Tables, sample: int, wanted_M: Places, size: int) -> None:
    """Gives a sample degrees like those of another."""
    for module in range(3):
        if degrees[sample, module] >= 0:
            wanted = wanted_M[module] if wanted_M[module] >= 0 else wanted_M[2]
            degrees[sample, module] = _nearest(tables, sample, module, wanted, size)
