"""Plans around GPUs that are slow or lost.

A planner takes all GPUs for alike, and a cascade waits for its slowest. So a plan is mended in three ways, and what is
shortest when it is executed on paper counts; doing nothing is among them.

- Renaming: which of the plan's GPUs the slow one is, such that it hurts least, as where there is slack.
- Exchanges: two samples change places in the plan, such that groups with a slow GPU get the shorter ones.
- Leaving out: a plan for the GPUs without the slowest ones, as many as pays; lost ones are always left out.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from loader.base.arrays import Floats, Places
from loader.errors import RunError, UsageError
from train.cascade.paper.simulate import Noise, execute, orders
from train.cascade.placement.mapper import by_number
from train.cascade.problem import Cascade, Problem
from train.cascade.schedule import Run, Schedule
from train.cascade.scheduling.passes import Lines

TRIES = 2_000
"""Exchanges of samples that are judged, at most: a count and no clock, so that every rank gets the same."""
_MOST_LEFT_OUT = 4  # slow GPUs, one after the other; then all of them at once
_ROUNDS = 3  # of renaming, where several GPUs are slow
_SHARPNESS = 200.0
_WORTH = 1e-9  # of the makespan, that a change must gain

Planner = Callable[[Problem], Schedule]
Mapper = Callable[[Schedule, Sequence[int]], Schedule]
"""Puts a plan for n GPUs onto n GPUs of these numbers."""


def without(problem: Problem, gpus: Collection[int]) -> Problem:
    """The same samples on fewer GPUs.

    Raises:
        UsageError: none is left, or a sample fits on no number of them.
    """
    left = problem.gpus - len(set(gpus))
    if left < 1:
        raise UsageError(f"all {problem.gpus} GPUs are lost")
    return Problem(left, problem.degrees_K, problem.seconds_SMK, problem.memory_SMK, problem.memory)


def slowed(schedule: Schedule, slow: Mapping[int, float]) -> Schedule:
    """A schedule as it is executed when nothing but these GPUs is slow."""
    still = Noise(sigma=0, slow=dict(slow))
    return execute(schedule, still.factors(schedule, np.random.default_rng(0)))


def around(
    problem: Problem,
    slow: Mapping[int, float],
    plan: Planner,
    lost: Collection[int] = (),
    onto: Mapper = by_number,
    block: int = 1,
    tries: int = TRIES,
) -> Schedule:
    """The shortest plan that is found when some GPUs are slow and some are lost; a pure function if the planner is.

    Args:
        problem: of all GPUs, as if they were alike and all there.
        slow: GPUs that take so many times as long as the others; see `correction`.
        plan: any planner.
        lost: GPUs that run nothing.
        onto: puts what was planned for fewer GPUs onto those that are left.
        block: GPUs of a node. Renaming exchanges whole nodes, and numbers within nodes in all of them, which changes
            no group's nodes, shares and rails; with 1 it exchanges any GPUs.
        tries: exchanges of samples that are judged for each plan.

    Returns:
        A schedule on the GPUs that are left, in the numbers of all of them, with the times of GPUs that are alike;
        `slowed` tells when it really ends: no later than what the planner made of the GPUs that are left.

    Raises:
        UsageError: a sample fits on no number of the GPUs that are left.
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
    """None, the slowest, the two slowest, and so on, and all of them."""
    slowest = sorted(slow, key=lambda gpu: (-slow[gpu], gpu))
    for count in range(min(len(slowest), _MOST_LEFT_OUT) + 1):
        yield slowest[:count]
    if len(slowest) > _MOST_LEFT_OUT:
        yield slowest


def _mended(
    problem: Problem, schedule: Schedule, slow_G: Floats, gone: Collection[int], block: int, tries: int
) -> Schedule:
    """The same plan with GPUs renamed and samples exchanged."""
    used = {gpu for run in schedule.runs for gpu in run.gpus if slow_G[gpu] > 1}
    if not used:
        return schedule
    search = _Search(problem, schedule, slow_G)
    search.rename(sorted(used, key=lambda gpu: (-slow_G[gpu], gpu)), gone, block)
    search.exchange(tries)
    return search.schedule()


class _Search:
    """Changes of a plan that keep its order: which GPU is which, and which sample is which.

    Judged by sum(exp(SHARPNESS * (end / T - 1))) over the runs, T the makespan at first: it notices every late run,
    where the makespan alone says nothing as long as there are two.
    """

    def __init__(self, problem: Problem, schedule: Schedule, slow_G: Floats) -> None:
        self._problem, self._planned, self._slow_G = problem, schedule, slow_G
        self._lines, self._on = Lines.of(schedule), [tuple(own) for own in orders(schedule)]
        place = {degree: k for k, degree in enumerate(problem.degrees_K.tolist())}
        self._module_R = np.array([run.cascade.module for run in schedule.runs])
        self._k_R = np.array([place[len(run.gpus)] for run in schedule.runs])
        self._gpu_G, self._sample_S = np.arange(schedule.gpus), np.arange(problem.samples)
        self._at_first_s = float(self._lines.ends(self._seconds(self._gpu_G, self._sample_S)).max())
        self._energy = self._judged(self._gpu_G, self._sample_S)

    def rename(self, slow: Sequence[int], gone: Collection[int], block: int) -> None:
        """Gives slow GPUs the places of others, one after the other, as long as that helps."""
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
        """Samples that end the iteration change places with others, as long as that helps."""
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
        """As changed, with the times of GPUs that are alike."""
        gpu_of, sample_of = self._gpu_G.tolist(), self._sample_S.tolist()
        runs = []
        for run, k in zip(self._planned.runs, self._k_R, strict=True):
            cascade = Cascade(sample_of[run.cascade.sample], run.cascade.module)
            seconds = float(self._problem.times_SMK[(*cascade, k)])
            gpus = tuple(sorted(gpu_of[gpu] for gpu in run.gpus))
            runs.append(Run(cascade, run.start_s, run.start_s + seconds, gpus))
        return execute(Schedule(tuple(runs), self._planned.gpus))

    def _others(self, gpu: int) -> list[int]:
        """One GPU of all that run the same, but for those that run what this one does."""
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
    """Ways in which a GPU may take the place of others: of each GPU, the one that it becomes, int64 [gpus].

    With ``block`` GPUs to a node the two GPUs' nodes change places as wholes, and their numbers within nodes in all
    nodes; so groups stay together, balanced and on their rails. What is gone stays gone.
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
