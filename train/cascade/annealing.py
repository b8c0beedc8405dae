"""Simulated annealing of samples in cells of GPUs: the moves, compiled.

A cell is a block of GPUs with a few samples, whose cascades are list-scheduled by urgency. A move changes one or two
cells, so judging it takes a microsecond; and the energy sum(exp(SHARPNESS * (makespan / T - 1))) over the cells notices
every cell, where the makespan of the whole schedule says nothing of most moves.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from loader.arrays import Places
from train.cascade.compiled import compiled
from train.cascade.list_schedule import Choice, Scratch, Tables, place

SHARPNESS = 150.0
_WITHIN = 0.6  # share of the moves that change one cell; the others change two
_DIT, _VAE = 0.27, 0.4  # up to here a move changes the degree of a DiT, of a VAE; then the order
_ALIKE, _SWAP = 0.9, 0.97  # up to here samples of like size change cells, then any two; then one moves


class State(NamedTuple):
    """What moves change.

    Attributes:
        members_CP: samples of each cell, int64 [C, P].
        count_C: how many there are, int64 [C].
        choice: of all samples.
    """

    members_CP: Places
    count_C: Places
    choice: Choice


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
    members, counts, choice = state
    degrees, urgencies = choice
    cells, longest = members.shape
    samples = len(degrees)
    by_size, rank = _ranked(tables)
    cell_of, place_of = np.empty(samples, np.int64), np.empty(samples, np.int64)
    makespans = np.empty(cells)
    for cell in range(cells):
        for number in range(counts[cell]):
            cell_of[members[cell, number]], place_of[members[cell, number]] = cell, number
        makespans[cell] = place(members[cell], counts[cell], choice, tables, size_C[cell], np.inf, scratch)
    own_degrees, its_degrees = np.empty_like(degrees[0]), np.empty_like(degrees[0])
    own_urgency, its_urgency = np.empty_like(urgencies[0]), np.empty_like(urgencies[0])
    best_s = makespans.max()
    best = (members.copy(), counts.copy(), degrees.copy(), urgencies.copy())
    for move in range(cooling.moves):
        if best_s <= cooling.enough_s:
            break
        heat = cooling.first * (cooling.last / cooling.first) ** (move / cooling.moves)
        allowed = -math.log(np.random.random() + 1e-300) * heat
        cell, other = np.random.randint(cells), np.random.randint(cells)
        if makespans[other] > makespans[cell]:
            cell = other
        if counts[cell] == 0:
            continue
        number = np.random.randint(counts[cell])
        sample = members[cell, number]
        kind = np.random.random()
        if cells == 1:
            kind *= _WITHIN
        if kind < _WITHIN:
            partner, other = members[cell, np.random.randint(counts[cell])], cell
        elif kind < _ALIKE:
            near = rank[sample] + np.random.randint(1, 5) * (1 if np.random.random() < 0.5 else -1)
            if near < 0 or near >= samples:
                continue
            partner = by_size[near]
            other = cell_of[partner]
        else:
            partner = np.random.randint(samples)
            other = cell_of[partner]
        goes = kind >= _SWAP and counts[other] < longest
        if kind >= _WITHIN:
            if other == cell or not _fits(degrees, tables, sample, size_C[other]):
                continue
            if not goes and not _fits(degrees, tables, partner, size_C[cell]):
                continue
        own_degrees[:], its_degrees[:] = degrees[sample], degrees[partner]
        own_urgency[:], its_urgency[:] = urgencies[sample], urgencies[partner]
        there = place_of[partner]

        if kind < _VAE:
            module = 2 if kind < _DIT else 1
            if not _step(degrees, tables, sample, module, size_C[cell]):
                continue
            if module == 2 and degrees[sample, 1] >= 0 and np.random.random() < 0.5:
                degrees[sample, 1] = _nearest(tables, sample, 1, degrees[sample, 2], size_C[cell])
        elif kind < _WITHIN:
            module, its = np.random.randint(3), np.random.randint(3)
            urgencies[sample, module] = its_urgency[its]
            urgencies[partner, its] = own_urgency[module]
        elif goes:
            last = members[cell, counts[cell] - 1]
            members[cell, number], place_of[last] = last, number
            members[other, counts[other]], place_of[sample] = sample, counts[other]
            counts[cell] -= 1
            counts[other] += 1
            _take(degrees, tables, sample, own_degrees, size_C[other])
        else:
            members[cell, number], place_of[partner] = partner, number
            members[other, there], place_of[sample] = sample, there
            _take(degrees, tables, partner, own_degrees, size_C[cell])
            _take(degrees, tables, sample, its_degrees, size_C[other])
            urgencies[sample], urgencies[partner] = its_urgency, own_urgency

        energy = _energy(makespans[cell], target_s)
        if other != cell:
            energy += _energy(makespans[other], target_s)
        energy = energy * math.exp(allowed) + allowed
        limit_s = _makespan(energy, target_s)
        found_s = place(members[cell], counts[cell], choice, tables, size_C[cell], limit_s, scratch)
        there_s = found_s
        if other != cell and found_s < np.inf:
            limit_s = _makespan(energy - _energy(found_s, target_s), target_s)
            there_s = place(members[other], counts[other], choice, tables, size_C[other], limit_s, scratch)

        if there_s < np.inf:
            makespans[cell], makespans[other] = found_s, there_s
            if other != cell:
                cell_of[sample] = other
                if not goes:
                    cell_of[partner] = cell
            if makespans.max() < best_s - 1e-9:
                best_s = makespans.max()
                best[0][:], best[1][:], best[2][:], best[3][:] = members, counts, degrees, urgencies
            continue
        degrees[sample], degrees[partner] = own_degrees, its_degrees
        urgencies[sample], urgencies[partner] = own_urgency, its_urgency
        if kind >= _WITHIN and goes:
            counts[cell] += 1
            counts[other] -= 1
            last = members[cell, number]
            members[cell, counts[cell] - 1], place_of[last] = last, counts[cell] - 1
            members[cell, number], place_of[sample] = sample, number
        elif kind >= _WITHIN:
            members[cell, number], place_of[sample] = sample, number
            members[other, there], place_of[partner] = partner, there
    members[:], counts[:], degrees[:], urgencies[:] = best
    return float(best_s)


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
