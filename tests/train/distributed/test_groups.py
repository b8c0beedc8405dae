"""Memory that communicators are counted with, until a GPU has measured it."""

import pytest

from reelweave.train.cascade.menu import communicator_bytes
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.communicator_memory import all_to_all_bytes, ring_bytes
from reelweave.train.memory.dry_run import communicator_bytes as of_layout
from tests.train.clips import tiny_config

GIB = 2**30


def test_a_menu_takes_an_all_to_all_of_each_degree():
    assert all_to_all_bytes(8) / GIB == pytest.approx(2.625)  # docs/cascade-execution.md
    assert communicator_bytes([1, 2, 4, 8]) / GIB == pytest.approx(4.125)


def test_a_layout_takes_its_groups_and_that_of_all_ranks():
    def total(ranks: int, **parallel: object) -> int:
        config = tiny_config(1).model_copy(update={"parallel": ParallelConfig(**parallel)})
        return of_layout(config.step, ranks)

    assert total(1) == 0
    replicated, fsdp = total(8), total(8, dp_replicate=1, dp_shard="rest")
    # All ranks, and the mesh dimension of weights; sums over all ranks take the group of all ranks.
    assert replicated == fsdp == 2 * ring_bytes(8)
    ulysses = total(8, ulysses=4)
    # The group of Ulysses exchanges with all, alone and as the whole of a sequence; others sum.
    assert ulysses > replicated + 2 * all_to_all_bytes(4)
