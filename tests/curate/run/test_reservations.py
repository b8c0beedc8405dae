"""Reservations of workers: one of each stage finds room at the same time, on any cluster that can run them in turn."""

import pytest

from reelweave.curate.run.runners.reservations import Resources, fit_reservations
from reelweave.loader.errors import UsageError

CUT, EMBED, CAPTIONS, TEXT = Resources(1, 0, 1536), Resources(1), Resources(1), Resources(1)
STAGES = {"cut": CUT, "embed": EMBED, "captions": CAPTIONS, "text_embed": TEXT}
ON_GPU = {
    "cut": CUT,
    "embed": Resources(1, 0.25),
    "captions": Resources(1, 1.0),
    "text_embed": Resources(1, 0.25),
}


def test_what_fits_stays_as_it_is() -> None:
    assert fit_reservations(STAGES, [Resources(4, 0, 8000)]) == STAGES
    assert fit_reservations(ON_GPU, [Resources(64, 0, 8000), Resources(8, 2, 8000)]) == ON_GPU


@pytest.mark.parametrize(("cpus", "each"), [(1, 0.25), (2, 0.5), (3, 0.5)])
def test_a_small_machine_is_shared_by_all_stages(cpus: int, each: float) -> None:
    found = fit_reservations(STAGES, [Resources(cpus, 0, 8000)])
    assert {share.cpus for share in found.values()} == {each}
    assert found["cut"].memory_mb == 1536


def test_three_stages_on_one_processor_never_add_up_to_more_than_it() -> None:
    found = fit_reservations({"cut": CUT, "embed": EMBED, "captions": CAPTIONS}, [Resources(1, 0, 8000)])
    assert 0.999 < sum(share.cpus for share in found.values()) <= 1.0


def test_memory_of_a_small_machine_is_no_reason_to_wait_for_ever() -> None:
    assert fit_reservations({"cut": CUT}, [Resources(1, 0, 700)]) == {"cut": Resources(1, 0, 700)}


def test_a_worker_that_wants_more_than_the_largest_node_takes_that_node() -> None:
    found = fit_reservations(
        {"cut": CUT, "embed": Resources(16)}, [Resources(4, 0, 8000), Resources(4, 0, 8000)]
    )
    assert found == {"cut": CUT, "embed": Resources(4)}


def test_one_gpu_is_shared_by_all_models() -> None:
    found = fit_reservations(ON_GPU, [Resources(8, 1, 32_000)])
    assert found["captions"].gpus == 0.5
    assert sum(share.gpus for share in found.values()) <= 1.0
    assert {share.cpus for share in found.values()} == {1}


def test_a_part_of_a_gpu_lies_on_one_device() -> None:
    models = {name: Resources(1, 0.6) for name in "abc"}
    found = fit_reservations(models, [Resources(8, 2, 8000)])
    assert {share.gpus for share in found.values()} == {0.3}


def test_processors_of_several_nodes_do_not_add_up_to_one() -> None:
    found = fit_reservations({"embed": Resources(3), "captions": Resources(3)}, [Resources(4), Resources(2)])
    assert {share.cpus for share in found.values()} == {1.5}


def test_whole_gpus_that_are_not_there_are_told_in_words() -> None:
    with pytest.raises(UsageError, match=r"captions wants 2 GPUs.*run\.caption_gpus"):
        fit_reservations({"cut": CUT, "captions": Resources(1, 2.0)}, [Resources(8, 1, 8000)])
    with pytest.raises(UsageError, match="want 3 GPUs"):
        fit_reservations({"embed": Resources(1, 1.0), "captions": Resources(1, 2.0)}, [Resources(8, 2, 8000)])


def test_a_cluster_whose_nodes_have_yet_to_come_changes_nothing() -> None:
    assert fit_reservations(STAGES, [Resources(0, 0, 8000)]) == STAGES
