"""Simulated annealing of samples in cells of GPUs, compiled.

A cell is a block of GPUs with a few samples, whose cascades follow an order (`serial`). A move changes one or
two cells, so that its evaluation takes less than a microsecond. The energy is sum(exp(SHARPNESS * (cost / T -
1))) over the cells. It reflects every cell, whereas most moves leave the makespan unchanged.
"""

import math
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Flags, IndexArray, IntegerArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.planners.degree_moves import LOG, exchange, fit, set_degree, step, undo
from reelweave.train.cascade.planners.order_moves import (
    copy,
    reorder,
    replace_sample,
    turn,
    with_one,
    without,
)
from reelweave.train.cascade.scheduling.list_schedule import Tables
from reelweave.train.cascade.scheduling.random_bits import Bits, below, chance
from reelweave.train.cascade.scheduling.serial import MODULES, CascadeTable, Cells, SerialScratch, lay

# Parameters here and in the moves are tuned on cases like those of docs/benchmarks/planners.md with other seeds.
SHARPNESS = 200.0
_WITHIN = 0.6  # share of the moves that change one cell
_DEGREES, _TURN = (
    0.45,
    0.15,
)  # shares of those that change degrees and that swap two samples; others move a cascade
_ALIKE = 0.9  # share of the moves between cells that exchange samples of like size; others move one sample
_LIKE = 6  # maximum rank difference by size between samples of like size


class State(NamedTuple):
    """Mutable state of the annealing.

    Attributes:
        order_CN: execution order of each cell's cascades, each as MODULES * sample + module, including missing
            modules, uint32 [C, N].
        count_C: number of cascades of each cell, int64 [C].
        degree_SM: index into ``degrees_K``, -1 where a sample lacks the module, int64 [S, M].
    """

    order_CN: IntegerArray
    count_C: IndexArray
    degree_SM: IndexArray


class Cooling(NamedTuple):
    """Length and temperatures of the annealing.

    Attributes:
        moves: maximum number of moves.
        first: temperature at the first move, in units of the logarithm of the energy.
        last: temperature at the last move.
        enough_s: makespan at which to stop.
    """

    moves: int
    first: float
    last: float
    enough_s: float


@compiled
def anneal(
    state: State,
    tables: Tables,
    cells: Cells,
    target_s: float,
    cooling: Cooling,
    bits: Bits,
    scratch: SerialScratch,
) -> float:
    """Anneal a state in place to the best one found and return its makespan.

    Args:
        state: initial state.
        tables: arrays of the problem.
        cells: GPUs of each cell; its samples must fit.
        target_s: T of the energy, such as the lower bound.
        cooling: length and temperatures.
        bits: random state, advanced in place.
        scratch: work buffers of the problem.
    """
    order_CN, count_C, degree_SM = state
    size_C, samples = cells.size_C, len(degree_SM)
    num_cells, room = order_CN.shape
    shape = CascadeTable(
        np.zeros(samples * MODULES, np.int64),
        np.zeros(samples * MODULES),
        np.zeros(samples * MODULES, np.int64),
    )
    for sample in range(samples):
        for module in range(MODULES):
            set_degree(degree_SM, shape, tables, sample, module, degree_SM[sample, module])
    by_size_S, rank_S = _rank_samples(tables)
    cell_S, makespan_C, energy_C = np.empty(samples, np.int64), np.empty(num_cells), np.empty(num_cells)
    for cell in range(num_cells):
        for index in range(count_C[cell]):
            cell_S[order_CN[cell, index] // MODULES] = cell
        cost_s = lay(order_CN[cell], count_C[cell], shape, cell, cells, np.inf, scratch)
        makespan_C[cell], energy_C[cell] = scratch.makespan[0], _energy(cost_s, target_s)
    best_s = makespan_C.max()
    best = State(order_CN.copy(), count_C.copy(), degree_SM.copy())
    differs_C = np.zeros(num_cells, np.bool_)  # cell differs from the best state
    own_N, its_N = np.empty_like(order_CN[0]), np.empty_like(order_CN[0])
    log = np.empty((LOG, 3), np.int64)
    heat, cools = cooling.first, (cooling.last / cooling.first) ** (1 / max(cooling.moves, 1))
    for _ in range(cooling.moves):
        heat *= cools
        if best_s <= cooling.enough_s:
            break
        own_cell, other = below(bits, num_cells), below(bits, num_cells)
        if makespan_C[other] > makespan_C[own_cell]:
            own_cell = other
        own_count, its_count = count_C[own_cell], 0
        if own_count == 0:
            continue
        sample = order_CN[own_cell, below(bits, own_count)] // MODULES
        changed, partner, within = 0, -1, num_cells == 1 or chance(bits) < _WITHIN
        if within:
            kind = chance(bits)
            copy(order_CN[own_cell], own_count, own_N)
            if kind < _DEGREES:
                changed = step(degree_SM, shape, tables, own_N, own_count, size_C[own_cell], bits, log)
                if changed == 0:
                    continue
            elif kind < _DEGREES + _TURN:
                its = own_N[below(bits, own_count)] // MODULES
                if its == sample:
                    continue
                turn(own_N, own_count, sample, its)
            else:
                reorder(own_N, own_count, bits)
        elif chance(bits) < _ALIKE:
            near = rank_S[sample] + (1 + below(bits, _LIKE)) * (1 if chance(bits) < 0.5 else -1)
            if near < 0 or near >= samples:
                continue
            partner = by_size_S[near]
            other = cell_S[partner]
            if other == own_cell:
                continue
            its_count = count_C[other]
            replace_sample(order_CN[own_cell], own_count, sample, partner, own_N)
            replace_sample(order_CN[other], its_count, partner, sample, its_N)
            changed = exchange(
                degree_SM, shape, tables, sample, partner, size_C[own_cell], size_C[other], log
            )
        else:
            other = below(bits, num_cells)
            its_count = count_C[other]
            if other == own_cell or its_count + MODULES > room:
                continue
            own_count = without(order_CN[own_cell], own_count, sample, own_N)
            its_count = with_one(order_CN[other], its_count, sample, bits, its_N)
            changed = fit(degree_SM, shape, tables, sample, size_C[other], log)
        if changed < 0:
            undo(degree_SM, shape, tables, log, -changed - 1)
            continue

        allowed = -math.log(chance(bits) + 1e-300) * heat
        energy = energy_C[own_cell]
        if not within:
            energy += energy_C[other]
        energy = energy * math.exp(allowed) + allowed
        own_s = lay(own_N, own_count, shape, own_cell, cells, _cost(energy, target_s), scratch)
        its_s, own_energy, own_makespan_s = own_s, 0.0, scratch.makespan[0]
        if own_s < np.inf:
            own_energy = _energy(own_s, target_s)
        if not within and own_s < np.inf:
            limit_s = _cost(energy - own_energy, target_s)
            its_s = lay(its_N, its_count, shape, other, cells, limit_s, scratch)
        if its_s == np.inf:
            undo(degree_SM, shape, tables, log, changed)
            continue

        copy(own_N, own_count, order_CN[own_cell])
        differs_C[own_cell] = True
        makespan_C[own_cell], count_C[own_cell], energy_C[own_cell] = own_makespan_s, own_count, own_energy
        if not within:
            copy(its_N, its_count, order_CN[other])
            differs_C[other] = True
            makespan_C[other], count_C[other] = scratch.makespan[0], its_count
            energy_C[other] = _energy(its_s, target_s)
            cell_S[sample] = other
            if partner >= 0:
                cell_S[partner] = own_cell
        if own_makespan_s < best_s and makespan_C.max() < best_s - 1e-9:
            best_s = makespan_C.max()
            _keep(best, state, differs_C)
    _keep(state, best, differs_C)
    return float(best_s)


@compiled
def _keep(best: State, state: State, differs_C: Flags) -> None:
    """Copy the cells in which two states differ."""
    for cell in range(len(differs_C)):
        if differs_C[cell]:
            differs_C[cell] = False
            best.count_C[cell] = state.count_C[cell]
            for index in range(state.count_C[cell]):
                cascade = state.order_CN[cell, index]
                best.order_CN[cell, index] = cascade
                sample = cascade // MODULES
                module = cascade - MODULES * sample
                best.degree_SM[sample, module] = state.degree_SM[sample, module]


@compiled
def _rank_samples(tables: Tables) -> tuple[IndexArray, IndexArray]:
    """Return samples sorted by the least work of their DiT, and the rank of each."""
    samples = len(tables.times_SMK)
    least_S = np.empty(samples)
    for sample in range(samples):
        least_S[sample] = (tables.times_SMK[sample, -1] * tables.degrees_K).min()
    by_size_S = np.argsort(least_S)
    rank_S = np.empty(samples, np.int64)
    for rank in range(samples):
        rank_S[by_size_S[rank]] = rank
    return by_size_S, rank_S


@compiled
def _energy(cost_s: float, target_s: float) -> float:
    return math.exp(min(SHARPNESS * (cost_s / target_s - 1), 600.0))


@compiled
def _cost(energy: float, target_s: float) -> float:
    """Return the cost of an energy; inverts `_energy`."""
    return target_s * (1 + math.log(energy) / SHARPNESS) if energy > 0 else 0.0
