import numpy as np
import pytest

from reelweave.train.cascade.placement.board import Board
from reelweave.train.cascade.placement.candidates import even_shares
from reelweave.train.cascade.placement.levels import BOTH, NEITHER, Priorities
from reelweave.train.cascade.placement.mapper import by_number, place, placed_cost
from reelweave.train.cascade.placement.topology import PRESETS, Topology
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.simulation.cases import DEGREES, arachne
from tests.thorough import beyond, thorough
from tests.train.cascade.check import violations
from tests.train.cascade.placement.placements import best_cost, cost, drawn

SMALL = Topology(
    nodes=2,
    gpus_per_node=4,
    distances=(
        ("PIX", "NODE", "SYS", "SYS"),
        ("NODE", "PIX", "SYS", "SYS"),
        ("SYS", "SYS", "PIX", "NODE"),
        ("SYS", "SYS", "NODE", "PIX"),
    ),
)


def untouched(schedule):
    return [(run.cascade, run.start_s, run.end_s, len(run.gpus)) for run in schedule.runs]


@thorough
def test_against_all_assignments_of_six_cascades_on_two_nodes():
    found, best = [], []
    for seed in range(40):
        problem, schedule = drawn(2, 8, (1, 2, 3, 4, 6, 8), seed)
        placed = place(schedule, SMALL)
        assert violations(problem, placed) == []
        found.append(cost(placed, SMALL))
        assert found[-1] == placed_cost(placed, SMALL)
        best.append(best_cost(schedule, SMALL, known=found[-1]))
    pairs = list(zip(found, best, strict=True))
    assert sum(own == least for own, least in pairs) >= 0.9 * len(pairs)
    # Nodes are always as few as they can be, and what else is lost is small.
    assert all(own.nodes == least.nodes for own, least in pairs)
    assert sum(own.imbalance for own in found) <= 1.05 * sum(least.imbalance for least in best)
    assert sum(own.distance for own in found) <= 1.01 * sum(least.distance for least in best)


@pytest.mark.parametrize("seed", beyond(10, range(25)))
def test_random_schedules_stay_valid_and_never_get_worse(seed):
    draw = np.random.default_rng(seed)
    gpus = int(draw.integers(1, 41))
    problem, schedule = drawn(int(draw.integers(1, 16)), gpus, DEGREES, seed)
    topology = PRESETS[str(draw.choice(["dgx-h100", "pcie"]))].holding(gpus)
    for priorities in (
        BOTH,
        Priorities(intra=False),
        Priorities(inter=False),
        NEITHER,
    ):
        placed = place(schedule, topology, priorities, tries=40)
        assert violations(problem, placed) == []
        assert untouched(placed) == untouched(schedule)
        assert placed_cost(placed, topology, priorities) <= placed_cost(schedule, topology, priorities)


@pytest.mark.parametrize("seed", range(8))
def test_some_gpus_of_a_cluster(seed):
    draw = np.random.default_rng(seed)
    gpus = int(draw.integers(4, 33))
    among = sorted(draw.choice(40, gpus, replace=False).tolist())
    problem, schedule = drawn(6, gpus, DEGREES, seed)
    topology = PRESETS["dgx-h100"].holding(40)
    placed = place(schedule, topology, tries=40, among=among)
    assert {gpu for run in placed.runs for gpu in run.gpus} <= set(among)
    assert untouched(placed) == untouched(schedule)
    back = {gpu: number for number, gpu in enumerate(among)}
    runs = [run._replace(gpus=tuple(back[gpu] for gpu in run.gpus)) for run in placed.runs]
    assert violations(problem, Schedule(tuple(runs), gpus)) == []
    assert placed_cost(placed, topology) <= placed_cost(by_number(schedule, among), topology)
    with pytest.raises(ValueError, match="GPUs on 1"):
        place(schedule, topology, among=[0])


def test_without_priorities_gpus_are_taken_by_number():
    problem, schedule = drawn(6, 16, (1, 2, 4, 8), 5)
    placed = place(schedule, PRESETS["dgx-h100"].holding(16), NEITHER)
    assert violations(problem, placed) == []
    for run in placed.runs:
        taken = {
            gpu
            for other in placed.runs
            if other.start_s < run.end_s and other.end_s > run.start_s + 1e-6 and other != run
            for gpu in other.gpus
            if placed.runs.index(other) < placed.runs.index(run)
        }
        free = [gpu for gpu in range(16) if gpu not in taken]
        assert list(run.gpus) == free[: len(run.gpus)]


def test_the_same_schedule_is_placed_the_same():
    _, schedule = drawn(12, 32, DEGREES, 3)
    topology = PRESETS["dgx-h100"].holding(32)
    assert place(schedule, topology) == place(schedule, topology)


def test_no_cascade_of_the_case_study_leaves_its_node():
    problem = arachne()
    topology = PRESETS["dgx-h100"].holding(16)
    placed = place(plan(problem).schedule, topology)
    assert violations(problem, placed) == []
    assert placed_cost(placed, topology).nodes == 0


def test_a_topology_too_small_is_refused():
    _, schedule = drawn(2, 16, (1, 2), 0)
    with pytest.raises(ValueError, match="16 GPUs on a topology of 8"):
        place(schedule, SMALL)


@pytest.mark.parametrize("seed", range(20))
def test_any_move_keeps_a_schedule_valid_and_can_be_taken_back(seed):
    problem, schedule = drawn(8, 16, (1, 2, 3, 4, 6, 8, 12), seed)
    board = Board(schedule, [run.gpus for run in schedule.runs])
    draw = np.random.default_rng(seed)

    def shown():
        gpus = [tuple(sorted(own)) for own in board.gpus]
        runs = (run._replace(gpus=own) for run, own in zip(schedule.runs, gpus, strict=True))
        return type(schedule).of(runs, schedule.gpus), [list(own) for own in board.on]

    for _ in range(20):
        number = int(draw.integers(len(schedule.runs)))
        wanted = sorted(draw.choice(16, len(schedule.runs[number].gpus), replace=False).tolist())
        before = shown()
        done = board.move(number, wanted)
        assert board.gpus[number] == set(wanted)
        moved, on = shown()
        assert violations(problem, moved) == []
        assert all(number in on[gpu] for number, run in enumerate(moved.runs) for gpu in run.gpus)
        if draw.random() < 0.5:
            board.undo(done)
            assert shown() == before


def test_shares_are_as_even_as_the_room_allows():
    assert even_shares(6, {0: 8, 1: 8}) == {0: 3, 1: 3}
    assert even_shares(12, {0: 4, 1: 8}) == {0: 4, 1: 8}
    assert even_shares(13, {0: 8, 1: 3, 2: 8}) == {0: 5, 1: 3, 2: 5}
