"""Workers per stage: the slowest stage is as fast as the machine allows, and is never left waiting."""

import heapq
import itertools
from collections import deque

import pytest

from curate.run.runners.passes import Pass, plan_notes
from curate.run.runners.pipeline import Pool
from curate.run.runners.workers import Load, Machine, WorkerPlan, balance
from loader.errors import UsageError


def idle_share(
    seconds: dict[str, float], workers: dict[str, int], sources: int, queue: int = 8
) -> dict[str, float]:
    """Plays sources through stages with bounded queues between them; idle share of each after the first tenth."""
    names = list(seconds)
    queues = {name: deque[int]() for name in names}
    queues[names[0]].extend(range(sources))
    blocked: dict[str, deque[int]] = {name: deque() for name in names}
    free = dict(workers)
    busy_s = dict.fromkeys(names, 0.0)
    events: list[tuple[float, int, str, int]] = []
    counter = itertools.count()
    now = warm_s = 0.0
    finished = 0

    def start() -> None:
        moved = True
        while moved:
            moved = False
            for place in reversed(range(len(names))):
                name = names[place]
                if blocked[name] and len(queues[names[place + 1]]) < queue:
                    queues[names[place + 1]].append(blocked[name].popleft())
                    free[name] += 1
                    moved = True
                if free[name] and queues[name]:
                    heapq.heappush(events, (now + seconds[name], next(counter), name, queues[name].popleft()))
                    free[name] -= 1
                    moved = True

    start()
    while events:
        now, _, name, source = heapq.heappop(events)
        if warm_s:
            busy_s[name] += min(seconds[name], now - warm_s)
        if name == names[-1]:
            free[name] += 1
            finished += 1
            if finished == sources // 10:
                warm_s = now
        else:
            blocked[name].append(source)
        start()
    return {name: 1 - busy_s[name] / (workers[name] * (now - warm_s)) for name in names}


def test_a_gpu_stage_twenty_times_slower_hardly_waits() -> None:
    loads = [Load("cut", 10.0), Load("embed", 10.0, gpus=0.25), Load("captions", 200.0, gpus=1.0)]
    plan = balance(loads, Machine(cpus=64, gpus=8))
    workers = {name: pool.most for name, pool in plan.pools.items()}
    assert workers["captions"] == 7
    assert plan.slowest == "captions"
    idle = idle_share({load.name: load.seconds for load in loads}, workers, 600)
    assert idle["captions"] < 0.1


def test_processors_go_where_they_make_the_whole_faster() -> None:
    # With the split that Ray's defaults reach here (83 to 4) the second stage is 20 times too slow.
    loads = [Load("cut", 1.0), Load("captions", 20.0)]
    plan = balance(loads, Machine(cpus=126))
    assert {name: pool.most for name, pool in plan.pools.items()} == {"cut": 6, "captions": 120}
    assert plan.rows_per_s == pytest.approx(6.0)
    idle = idle_share({"cut": 1.0, "captions": 20.0}, {"cut": 6, "captions": 120}, 3000)
    assert idle["captions"] < 0.1
    assert idle_share({"cut": 1.0, "captions": 20.0}, {"cut": 83, "captions": 4}, 300)["cut"] > 0.9


@pytest.mark.parametrize("machine", [Machine(7), Machine(16, 2), Machine(40, 3, 30_000)])
def test_no_other_split_is_faster(machine: Machine) -> None:
    loads = [
        Load("a", 3.0),
        Load("b", 7.0, cpus=2.0),
        Load("c", 1.0, gpus=0.5 if machine.gpus else 0, memory_mb=900),
    ]
    best = 0.0
    for counts in itertools.product(range(1, 41), repeat=3):
        used = [
            sum(count * getattr(load, name) for count, load in zip(counts, loads, strict=True))
            for name in ("cpus", "gpus", "memory_mb")
        ]
        if used[0] <= machine.cpus and used[1] <= machine.gpus and used[2] <= machine.memory_mb:
            best = max(best, min(count / load.seconds for count, load in zip(counts, loads, strict=True)))
    assert balance(loads, machine).rows_per_s == pytest.approx(best)


def test_a_stage_gets_no_more_workers_than_it_can_use() -> None:
    plan = balance([Load("a", 5.0, most=2), Load("b", 1.0)], Machine(cpus=32))
    assert plan.pools["a"].most == 2


def test_a_stage_that_costs_nothing_gets_one_worker() -> None:
    plan = balance([Load("a", 0.0), Load("b", 1.0)], Machine(cpus=5))
    assert {name: pool.most for name, pool in plan.pools.items()} == {"a": 1, "b": 4}


def test_a_machine_that_is_too_small_is_told_in_words() -> None:
    with pytest.raises(UsageError, match="captions need 2 CPUs, 2 GPUs"):
        balance([Load("embed", 1.0, gpus=1.0), Load("captions", 1.0, gpus=1.0)], Machine(cpus=8, gpus=1))


def test_a_thousand_processors_and_twenty_stages_are_planned_at_once() -> None:
    loads = [Load(f"stage {number:02}", 1.0 + number) for number in range(20)]
    plan = balance(loads, Machine(cpus=10_000))
    used = sum(pool.most for pool in plan.pools.values())
    assert 9_900 < used <= 10_000


def test_a_note_says_how_busy_the_workers_of_a_model_were() -> None:
    plan = WorkerPlan({"cut": Pool(1, 2, 1), "embed": Pool(1, 4, 2)}, 5.0, "embed")
    (note,) = plan_notes([Pass("sources", 10, 20.0, {"cut": 30.0, "embed": 60.0}, plan, ("embed",))])
    assert note["busy"] == {"embed": 0.75}
    assert plan_notes([Pass("clips", 10, 20.0, {}, None)]) == []
