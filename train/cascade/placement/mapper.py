"""Mapper: assigns GPUs to the cascades of a schedule by locality (Arachne, section IV-C).

The paper ranks places for one cascade and leaves conflicts between cascades open. Here the cost of a schedule
is the sum of its cascades' `Levels`, weighted by microseconds of run time and compared level by level. A greedy
pass in the order of starts is followed by a local search.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

from reelweave.train.cascade.placement.board import TOGETHER_S, Board
from reelweave.train.cascade.placement.candidates import CandidateSites
from reelweave.train.cascade.placement.levels import BOTH, NOTHING, Levels, Priorities, levels
from reelweave.train.cascade.placement.topology import Topology
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Run, Schedule

TRIES = 200
"""Maximum number of evaluated moves; a count bounds time with the same result on every machine."""
_QUIETEST = 4  # least busy nodes that a move considers, beside those of the cascade and its sample

_AS_IT_IS: Mapping[int, list[int]] = {}


def place(
    schedule: Schedule,
    topology: Topology,
    priorities: Priorities = BOTH,
    tries: int = TRIES,
    among: Sequence[int] | None = None,
) -> Schedule:
    """Return the same schedule on other GPUs, with equal times and degrees; a pure function.

    The cost is at most that of the schedule's own GPUs.

    Args:
        schedule: valid schedule.
        topology: cluster topology; may have more GPUs than the schedule.
        priorities: enabled priorities. Without those within cascades, GPUs of the sample's other modules come
            first, then lower numbers; with `NEITHER` lower numbers alone.
        tries: maximum number of evaluated moves.
        among: allowed GPUs of the topology, rising, as many as the schedule has, such as those that are not
            lost; None: the first ones.

    Raises:
        ValueError: the schedule has more GPUs than the topology, or ``among`` has another number.
    """
    if schedule.gpus > topology.gpus:
        raise ValueError(f"a schedule for {schedule.gpus} GPUs on a topology of {topology.gpus}")
    if among is not None:
        if len(among) != schedule.gpus:
            raise ValueError(f"a schedule for {schedule.gpus} GPUs on {len(among)}")
        schedule = by_number(schedule, among)
    among = among or range(schedule.gpus)
    planned_gpus = [list(run.gpus) for run in schedule.runs]
    starts = (_greedy(schedule, topology, priorities, among), planned_gpus)
    searches = [_Search(schedule, topology, priorities, gpus, among) for gpus in starts]
    for search in sorted(searches, key=lambda search: search.total):
        tries = search.run(tries)
    return _with(schedule, min(searches, key=lambda search: search.total).board.gpus)


def by_number(schedule: Schedule, gpus: Sequence[int]) -> Schedule:
    """Map a schedule to GPUs of these numbers, rising: its GPU 0 to the first, and so on."""
    named = _with(schedule, [[gpus[gpu] for gpu in run.gpus] for run in schedule.runs])
    return Schedule(named.runs, max(gpus) + 1)


def placed_cost(
    schedule: Schedule,
    topology: Topology,
    priorities: Priorities = BOTH,
) -> Levels:
    """Return the sum of the cascades' levels, weighted by microseconds."""
    planned_gpus = [run.gpus for run in schedule.runs]
    return _Search(schedule, topology, priorities, planned_gpus, range(schedule.gpus)).total


def needs(runs: Sequence[Run]) -> list[list[int]]:
    """Return for each run the indices of the runs that it takes inputs from."""
    by_sample: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        if run.cascade.module != Module.DIT:
            by_sample.setdefault(run.cascade.sample, []).append(index)
    return [by_sample.get(run.cascade.sample, []) if run.cascade.module == Module.DIT else [] for run in runs]


def _with(schedule: Schedule, gpus: Sequence[set[int]] | Sequence[Sequence[int]]) -> Schedule:
    pairs = zip(schedule.runs, gpus, strict=True)
    return Schedule(tuple(run._replace(gpus=tuple(sorted(gpus))) for run, gpus in pairs), schedule.gpus)


def _greedy(
    schedule: Schedule, topology: Topology, priorities: Priorities, among: Sequence[int]
) -> list[list[int]]:
    """Choose the best proposal for each cascade, in the order of starts.

    Only concurrent cascades conflict, so every choice leaves room for later ones.
    """
    sites = CandidateSites(topology)
    open_gpus = topology.by_node(among)
    running, chosen = list[tuple[float, int]](), list[list[int]]()
    before = needs(schedule.runs)
    of_sample: dict[int, list[int]] = {}
    for run_index, run in enumerate(schedule.runs):
        # GPUs of cascades that have ended are open again.
        while running and running[0][0] <= run.start_s + TOGETHER_S:
            for node, node_gpus in topology.by_node(chosen[heappop(running)[1]]).items():
                open_gpus[node] = sorted(open_gpus[node] + node_gpus)
        # GPUs that the sample's other cascades ran on, and those whose results this one takes.
        kin = of_sample.setdefault(run.cascade.sample, [])
        liked = kin if priorities.inter else []
        groups = [chosen[other] for other in before[run_index]]
        # The proposal with the shortest ways; else the first GPUs in order.
        if priorities.intra:
            best_gpus = min(
                sites.proposals(len(run.gpus), open_gpus, liked),
                key=lambda gpus: levels(topology, gpus, groups, priorities),
            )
        else:
            size = topology.gpus_per_node
            candidates = [node * size + gpu for node in sorted(open_gpus) for gpu in open_gpus[node]]
            best_gpus = sorted(sorted(candidates, key=lambda gpu: (gpu not in liked, gpu))[: len(run.gpus)])
        # They are taken until the cascade ends.
        for node, node_gpus in topology.by_node(best_gpus).items():
            open_gpus[node] = [gpu for gpu in open_gpus[node] if gpu not in node_gpus]
        chosen.append(best_gpus)
        kin += best_gpus
        heappush(running, (run.end_s, run_index))
    return chosen


class _Search:
    """Local search over moves of single cascades, each with the exchanges that keep it valid (`Board.move`).

    Attributes:
        board: current GPUs.
        total: cost of the schedule.
    """

    def __init__(
        self,
        schedule: Schedule,
        topology: Topology,
        priorities: Priorities,
        gpus: Sequence[Sequence[int]],
        among: Sequence[int],
    ) -> None:
        self.board = Board(schedule, gpus)
        self._among = topology.by_node(among)
        self._topology, self._priorities = topology, priorities
        self._sites, self._alone = CandidateSites(topology), dict[int, Levels]()
        self._before = needs(schedule.runs)
        self._after: list[list[int]] = [[] for _ in schedule.runs]
        for run_index, producers in enumerate(self._before):
            for other in producers:
                self._after[other].append(run_index)
        self._weight = [round((run.end_s - run.start_s) * 1e6) for run in schedule.runs]
        self._cost = [self._judge_runs(run_index) for run_index in range(len(schedule.runs))]
        self.total = _sum(self._cost)

    def run(self, tries: int) -> int:
        """Search until nothing helps or ``tries`` moves were evaluated; return the remaining number."""
        improved = True
        while improved:
            improved = False
            excess = [self._excess(run_index) for run_index in range(len(self._cost))]
            for run_index in sorted(
                range(len(excess)), key=lambda run_index: excess[run_index], reverse=True
            ):
                if self._excess(run_index) <= NOTHING:
                    continue
                for mover, target in self._moves(run_index):
                    if self._judge_runs(run_index, {mover: target}) >= self._cost[run_index]:
                        continue
                    if tries <= 0:
                        return 0
                    tries -= 1
                    if self._better(mover, target):
                        improved = True
                        break
        return tries

    def _excess(self, run_index: int) -> Levels:
        """Return a cascade's cost above its cost on an empty cluster."""
        min_levels, weight = self._least(len(self.board.gpus[run_index])), self._weight[run_index]
        pairs = zip(self._cost[run_index], min_levels, strict=True)
        return Levels(*(cost - weight * level for cost, level in pairs))

    def _least(self, degree: int) -> Levels:
        if degree not in self._alone:
            proposed = self._sites.proposals(degree, self._among, ())
            self._alone[degree] = min(levels(self._topology, gpus, (), self._priorities) for gpus in proposed)
        return self._alone[degree]

    def _judge_runs(self, run_index: int, instead: Mapping[int, list[int]] = _AS_IT_IS) -> Levels:
        """Return the cost of a cascade, with other GPUs for some runs."""

        def of(index: int) -> list[int]:
            return instead[index] if index in instead else sorted(self.board.gpus[index])

        before = [of(other) for other in self._before[run_index]]
        unweighted = levels(self._topology, of(run_index), before, self._priorities)
        weight = self._weight[run_index]
        return Levels(*[weight * level for level in unweighted])

    def _moves(self, run_index: int) -> Iterator[tuple[int, list[int]]]:
        """Yield moves of a cascade to better places, and of its inputs' cascades to its own."""
        size, total_gpus = self._topology.gpus_per_node, len(self.board.on)
        for mover in (run_index, *(self._before[run_index] if self._priorities.inter else [])):
            run_gpus = self.board.gpus[mover]
            related = set().union(
                *(self.board.gpus[other] for other in self._before[mover] + self._after[mover])
            )
            busy = self.board.busy(mover)
            around = {gpu // size for gpu in run_gpus | related}
            load_N = np.bincount(np.array([*busy, total_gpus - 1]) // size)
            around.update(np.argsort(load_N, kind="stable")[:_QUIETEST].tolist())
            near = [node * size + gpu for node in sorted(around) for gpu in self._among.get(node, ())]
            quiet = [gpu for gpu in near if gpu not in busy]
            tried = [sorted(run_gpus)]
            for allowed, liked in ((quiet, related), (near, related), (near, run_gpus | related)):
                if len(allowed) < len(run_gpus):
                    continue
                for target in self._sites.proposals(len(run_gpus), self._topology.by_node(allowed), liked):
                    if target not in tried:
                        tried.append(target)
                        yield mover, target

    def _better(self, mover: int, target: list[int]) -> bool:
        """Apply a move if it lowers the cost."""
        done = self.board.move(mover, target)
        moved = {run_index for _, _, chain in done for run_index in chain}
        touched = moved.union(*(self._after[run_index] for run_index in moved))
        now = {run_index: self._judge_runs(run_index) for run_index in touched}
        change = [
            new - old
            for new, old in zip(
                _sum(now.values()), _sum(self._cost[run_index] for run_index in touched), strict=True
            )
        ]
        if tuple(change) >= NOTHING:
            self.board.undo(done)
            return False
        for run_index, cost in now.items():
            self._cost[run_index] = cost
        self.total = Levels(*(old + by for old, by in zip(self.total, change, strict=True)))
        return True


def _sum(costs: Iterable[Levels]) -> Levels:
    return Levels(*(sum(column) for column in zip(NOTHING, *costs, strict=True)))
