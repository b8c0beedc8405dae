"""Workers per stage: all stages end at the same time, from what is left to each and what its rows cost."""

import itertools
from dataclasses import replace

import pytest

from reelweave.curate.run.runners.passes import Pass, plan_notes
from reelweave.curate.run.runners.replanning import Kept
from reelweave.curate.run.runners.reservations import Resources, worker_capacity
from reelweave.curate.run.runners.workers import (
    Load,
    StageState,
    balance,
    longest_calls,
    patience_s,
    plan_workers,
)

CPU = Resources(1.0)
EIGHT = [Resources(8, 0, 32_000)]
CUT = StageState("cut", CPU, pooled=False, calls=10, rows=10, yielded=20, seconds=10.0)
EMBED = StageState(
    "embed", CPU, pooled=True, workers=1, calls=11, rows=11, yielded=11, seconds=7.0, longest=(2.0,)
)


def test_a_gpu_stage_twenty_times_slower_gets_the_gpus() -> None:
    loads = [
        Load("cut", 10.0, CPU, 64),
        Load("embed", 10.0, Resources(1, 0.25), 64),
        Load("captions", 200.0, Resources(1, 1), 8),
    ]
    assert balance(loads, Resources(64, 8))["captions"] == 7


def test_processors_go_where_they_make_the_whole_faster() -> None:
    loads = [Load("cut", 1.0, CPU, 126), Load("captions", 20.0, CPU, 126)]
    assert balance(loads, Resources(126)) == {"cut": 6, "captions": 120}


@pytest.mark.parametrize("machine", [Resources(7), Resources(16, 2), Resources(40, 3, 30_000)])
def test_no_other_split_is_faster(machine: Resources) -> None:
    loads = [
        Load("a", 3.0, CPU, 99),
        Load("b", 7.0, Resources(2.0), 99),
        Load("c", 1.0, Resources(1, 0.5 if machine.gpus else 0, 900 if machine.memory_mb else 0), 99),
    ]

    def slowest_s(counts: tuple[int, ...]) -> float:
        return max(load.seconds / count for count, load in zip(counts, loads, strict=True))

    def fits(counts: tuple[int, ...]) -> bool:
        return all(
            sum(count * getattr(load.share, resource) for count, load in zip(counts, loads, strict=True))
            <= getattr(machine, resource)
            for resource in ("cpus", "gpus", "memory_mb")
        )

    best = min(slowest_s(counts) for counts in itertools.product(range(1, 41), repeat=3) if fits(counts))
    assert slowest_s(tuple(balance(loads, machine).values())) == pytest.approx(best)


def test_a_stage_gets_no_more_workers_than_it_can_use() -> None:
    assert balance([Load("a", 5.0, CPU, 2), Load("b", 1.0, CPU, 32)], Resources(32))["a"] == 2


def test_a_stage_without_work_keeps_one_worker_and_a_machine_too_small_one_of_each() -> None:
    assert balance([Load("a", 0.0, CPU, 5), Load("b", 1.0, CPU, 5)], Resources(5)) == {"a": 1, "b": 4}
    assert balance([Load("a", 1.0, CPU, 5), Load("b", 1.0, CPU, 5)], Resources(1)) == {"a": 1, "b": 1}


def test_a_thousand_processors_and_twenty_stages_are_planned_at_once() -> None:
    loads = [Load(f"stage {number:02}", 1.0 + number, CPU, 10_000) for number in range(20)]
    assert 9_900 < sum(balance(loads, Resources(10_000)).values()) <= 10_000


def test_calls_that_loaded_a_model_are_not_its_rate() -> None:
    assert EMBED.row_s == pytest.approx(0.5)
    assert StageState("embed", CPU, pooled=True, calls=1, rows=1, seconds=9.0, longest=(9.0,)).row_s is None
    assert longest_calls((9.0, 3.0), 2, 5.0, 3) == (9.0, 5.0, 5.0)


def test_work_is_what_waits_and_what_is_still_to_come() -> None:
    # 90 sources of 1 s are left to cut; 9 clips wait and 180 come, of 0.5 s: as much for both stages.
    assert plan_workers([CUT, EMBED], 100, EIGHT) == {"embed": 4}
    assert plan_workers([CUT, EMBED], 12, EIGHT) == {
        "embed": 6
    }  # 2 s of cutting against 6.5 s of what waits, too
    ended = replace(CUT, ended=True)
    assert plan_workers([ended, EMBED], 10, EIGHT) == {"embed": 8}
    slow_to_start = replace(EMBED, seconds=15.0, longest=(10.0,))
    assert plan_workers([ended, slow_to_start], 10, EIGHT) == {"embed": 1}  # 4.5 s are left


def test_new_nodes_are_used_and_lost_ones_are_not_counted() -> None:
    assert plan_workers([CUT, EMBED], 100, EIGHT * 2) == {"embed": 8}
    assert plan_workers([CUT, EMBED], 100, [Resources(2, 0, 32_000)]) == {"embed": 1}


def test_nothing_is_planned_before_all_stages_are_measured_but_for_what_nobody_else_wants() -> None:
    fresh = StageState("embed", CPU, pooled=True)
    on_gpu = StageState("captions", Resources(1, 0.5), pooled=True, batch=8)
    nodes = [Resources(8, 2, 32_000)]
    assert plan_workers([CUT, fresh], 100, EIGHT) == {}
    assert plan_workers([CUT, on_gpu], 100, nodes) == {"captions": 4}
    assert plan_workers([CUT, on_gpu, StageState("other", Resources(1, 0.5), pooled=True)], 100, nodes) == {}
    assert plan_workers([on_gpu], 17, nodes) == {"captions": 3}  # calls of eight


def test_workers_that_load_for_long_are_moved_seldom() -> None:
    assert patience_s([CUT]) == 1.0
    assert patience_s([CUT, EMBED]) == 4.0
    assert patience_s([StageState("a", CPU, pooled=True, longest=(900.0,))]) == 60.0


def test_places_are_counted_by_node_and_device() -> None:
    nodes = [Resources(4, 1, 8000), Resources(2, 2, 3000)]
    assert worker_capacity(CPU, nodes) == 6
    assert worker_capacity(Resources(3), nodes) == 1
    assert worker_capacity(Resources(0.5, 0.6), nodes) == 3
    assert worker_capacity(Resources(1, 0, 2000), nodes) == 5
    assert worker_capacity(Resources(1, 2), nodes) == 1


def test_a_note_says_how_busy_the_workers_of_a_model_were() -> None:
    (note,) = plan_notes(
        [Pass("sources", 10, 20.0, {"cut": 30.0, "embed": 60.0}, Kept({"embed": 4}, {"embed": 80.0}))]
    )
    assert note == {"of": "sources", "workers": {"embed": 4}, "rows_per_s": 0.5, "busy": {"embed": 0.75}}
    assert plan_notes([Pass("clips", 10, 20.0, {}, Kept())]) == []
