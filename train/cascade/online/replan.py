"""Plans around stragglers and lost GPUs.

A planner assumes identical GPUs, and a cascade waits for its slowest. A plan is therefore modified in three
ways, and the shortest simulated result wins, the original included.

- Renaming: choose which GPU of the plan the straggler is, preferably one with slack.
- Exchanges: swap samples so that groups with a straggler get the shorter ones.
- Exclusion: plan without the slowest GPUs, as many as pays; lost GPUs are always excluded.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from loader.base.arrays import Floats, Places
from loader.errors import RunError, UsageError
from train.cascade.paper.simulate import Noise, execute, orders
from train.cascade.placement.mapper import by_number
from train.cascade.problem import Cascade, Problem
from train.cascade.schedule import Run, Schedule
from train.cascade.scheduling.schedule_graph import ScheduleGraph

TRIES = 2_000
"""Maximum number of evaluated swaps; a count and no clock, so that every rank gets the same result."""
_MOST_LEFT_OUT = 4  # stragglers excluded one by one; then all of them
_ROUNDS = 3  # rounds of renaming with several stragglers
_SHARPNESS = 200.0
_WORTH = 1e-9  # share of the makespan that a change must gain

Planner = Callable[[Problem], Schedule]
Mapper = Callable[[Schedule, Sequence[int]], Schedule]
"""Mapping of a plan for n GPUs to n given GPU numbers."""


def without(problem: Problem, gpus: Collection[int]) -> Problem:
    """Return the problem with fewer GPUs.

    Raises:
        UsageError: no GPU is left, or a sample fits at no degree.
    """
    left = problem.gpus - len(set(gpus))
    if left < 1:
        raise UsageError(f"all {problem.gpus} GPUs are lost")
    return Problem(left, problem.degrees_K, problem.seconds_SMK, problem.memory_SMK, problem.memory)


def slowed(schedule: Schedule, slow: Mapping[int, float]) -> Schedule:
    """Return a schedule as it executes if only these GPUs are slow."""
    still = Noise(sigma=0, slow=dict(slow))
    return execute(schedule, still.factors(schedule, np.random.default_rng(0)))


def replan(
    problem: Problem,
    slow: Mapping[int, float],
    plan: Planner,
    lost: Collection[int] = (),
    onto: Mapper = by_number,
    block: int = 1,
    tries: int = TRIES,
) -> Schedule:
    """Return the shortest plan found with some GPUs slow and some lost; pure if the planner is.

    Args:
        problem: problem of all GPUs, as if identical and present.
        slow: slowdown of each straggler; see `correction`.
        plan: any planner.
        lost: GPUs that run nothing.
        onto: maps a plan for fewer GPUs to those that remain.
        block: GPUs of a node. Renaming swaps whole nodes, and numbers within all nodes alike, which preserves
            each group's nodes, shares and rails; with 1 it swaps any GPUs.
        tries: maximum number of evaluated swaps for each plan.

    Returns:
        A schedule on the remaining GPUs, in the numbers of all GPUs, with times of identical GPUs. Its
        `slowed` makespan is at most that of the planner's result for the remaining GPUs.

    Raises:
        UsageError: a sample fits at no degree on the remaining GPUs.
    """
    lost = set(lost)
    slow = {gpu: factor for gpu, factor in slow.items() if gpu not in lost and factor > 1}
    slow_G = np.array([slow.get(gpu, 1.0) for gpu in range(problem.gpus)])
    best: Schedule | None = None
    best_s = np.inf
    for out in _left_out(slow):
        gone = lost.union(out)
        try:
            fewer = without(problem, gone)
            planned = plan(fewer)
        except (UsageError, RunError):
            if not out:
                raise
            continue
        found = onto(planned, [gpu for gpu in range(problem.gpus) if gpu not in gone])
        found = Schedule(found.runs, problem.gpus)
        for mended in (found, _mended(problem, found, slow_G, gone, block, tries)):
            makespan_s = slowed(mended, slow).makespan_s
            if makespan_s < best_s * (1 - _WORTH):
                best, best_s = mended, makespan_s
    assert best is not None
    return best


def _left_out(slow: Mapping[int, float]) -> Iterator[list[int]]:
    """Yield sets of excluded GPUs: none, the slowest, the two slowest, and so on, and all stragglers."""
    slowest = sorted(slow, key=lambda gpu: (-slow[gpu], gpu))
    for count in range(min(len(slowest), _MOST_LEFT_OUT) + 1):
        yield slowest[:count]
    if len(slowest) > _MOST_LEFT_OUT:
        yield slowest


def _mended(
    problem: Problem, schedule: Schedule, slow_G: Floats, gone: Collection[int], block: int, tries: int
) -> Schedule:
    """Return the plan with GPUs renamed and samples swapped."""
    used = {gpu for run in schedule.runs for gpu in run.gpus if slow_G[gpu] > 1}
    if not used:
        return schedule
    search = _Search(problem, schedule, slow_G)
    search.rename(sorted(used, key=lambda gpu: (-slow_G[gpu], gpu)), gone, block)
    search.exchange(tries)
    return search.schedule()


class _Search:
    """Local search over a plan that keeps its order: permutations of GPUs and of samples.

    The objective is sum(exp(SHARPNESS * (end / T - 1))) over runs, T the initial makespan. It reflects every
    late run, whereas the makespan ignores all but the last.
    """

    def __init__(self, problem: Problem, schedule: Schedule, slow_G: Floats) -> None:
        self._problem, self._planned, self._slow_G = problem, schedule, slow_G
        self._lines, self._on = ScheduleGraph.of(schedule), [tuple(own) for own in orders(schedule)]
        place = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
        self._module_R = np.array([run.cascade.module for run in schedule.runs])
        self._k_R = np.array([place[len(run.gpus)] for run in schedule.runs])
        self._gpu_G, self._sample_S = np.arange(schedule.gpus), np.arange(problem.samples)
        self._at_first_s = float(self._lines.ends(self._seconds(self._gpu_G, self._sample_S)).max())
        self._energy = self._judged(self._gpu_G, self._sample_S)

    def rename(self, slow: Sequence[int], gone: Collection[int], block: int) -> None:
        """Swap stragglers with other GPUs greedily while the objective improves."""
        for _ in range(_ROUNDS):
            before = self._energy
            for gpu in slow:
                found = [
                    (self._judged(renamed_G, self._sample_S), renamed_G)
                    for taking_G in exchanges(self._planned.gpus, gpu, self._others(gpu), gone, block)
                    for renamed_G in [taking_G[self._gpu_G]]
                ]
                energy, renamed_G = min(found, key=lambda one: one[0], default=(np.inf, self._gpu_G))
                if energy < self._energy * (1 - _WORTH):
                    self._energy, self._gpu_G = energy, renamed_G
            if self._energy == before:
                break

    def exchange(self, tries: int) -> None:
        """Swap critical samples with others while the objective improves."""
        while tries > 0:
            seconds_R = self._seconds(self._gpu_G, self._sample_S)
            tight_R = self._lines.slack(seconds_R) <= _WORTH * self._at_first_s
            before = self._energy
            for own in np.unique(self._lines.sample_R[tight_R]).tolist():
                found = []
                for other in range(min(self._problem.samples, tries)):
                    sample_S = self._sample_S.copy()
                    sample_S[[own, other]] = sample_S[[other, own]]
                    found.append((self._judged(self._gpu_G, sample_S), other))
                tries -= len(found)
                energy, other = min(found, default=(np.inf, own))
                if energy < self._energy * (1 - _WORTH):
                    self._energy = energy
                    self._sample_S[[own, other]] = self._sample_S[[other, own]]
                    break
            if self._energy == before:
                break

    def schedule(self) -> Schedule:
        """Return the modified schedule, with times of identical GPUs."""
        gpu_of, sample_of = self._gpu_G.tolist(), self._sample_S.tolist()
        runs = []
        for run, k in zip(self._planned.runs, self._k_R, strict=True):
            cascade = Cascade(sample_of[run.cascade.sample], run.cascade.module)
            seconds = float(self._problem.times_SMK[(*cascade, k)])
            gpus = tuple(sorted(gpu_of[gpu] for gpu in run.gpus))
            runs.append(Run(cascade, run.start_s, run.start_s + seconds, gpus))
        return execute(Schedule(tuple(runs), self._planned.gpus))

    def _others(self, gpu: int) -> list[int]:
        """Return one GPU for each distinct set of runs, except this GPU's."""
        column_G = np.argsort(self._gpu_G).tolist()
        alike: dict[tuple[int, ...], int] = {}
        for other, column in enumerate(column_G):
            alike.setdefault(self._on[column], other)
        return [other for own, other in alike.items() if own != self._on[column_G[gpu]]]

    def _judged(self, gpu_G: Places, sample_S: Places) -> float:
        if not (self._problem.has_SM[sample_S] == self._problem.has_SM).all():
            return np.inf
        ends_R = self._lines.ends(self._seconds(gpu_G, sample_S))
        return float(np.exp(_SHARPNESS * (ends_R / self._at_first_s - 1)).sum())

    def _seconds(self, gpu_G: Places, sample_S: Places) -> Floats:
        slow_R = np.maximum.reduceat(self._slow_G[gpu_G[self._lines.gpu_P]], self._lines.first_R[:-1])
        times_R = self._problem.times_SMK[sample_S[self._lines.sample_R], self._module_R, self._k_R]
        return np.asarray(slow_R * times_R)


def exchanges(
    gpus: int, gpu: int, others: Iterable[int], gone: Collection[int], block: int
) -> Iterator[Places]:
    """Yield permutations that swap a GPU with others: the new number of each GPU, int64 [gpus].

    With ``block`` GPUs per node, the two GPUs' nodes swap as wholes, and so do their numbers within all nodes.
    Groups thus stay together, balanced and on their rails. Excluded GPUs stay excluded.
    """
    whole = gpus // block * block
    node_G, place_G = np.divmod(np.arange(whole), block)
    for other in others:
        if max(gpu, other) >= whole:
            continue
        became_G = np.arange(gpus)
        node, place = (
            _swapped(node_G, gpu // block, other // block),
            _swapped(place_G, gpu % block, other % block),
        )
        became_G[:whole] = node * block + place
        if set(became_G[list(gone)].tolist()) == set(gone):
            yield became_G


def _swapped(value_G: Places, one: int, other: int) -> Places:
    return np.where(value_G == one, other, np.where(value_G == other, one, value_G))
