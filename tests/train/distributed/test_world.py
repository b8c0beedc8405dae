import os
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import join
from reelweave.train.measure.peak_flops import peak_flops_per_s
from tests.train.ranks import own_event_loops


def member() -> None:
    """A rank of two."""
    own_event_loops()  # a loop that several groups share ends with none of them
    with join("cpu") as world:
        a, b = torch.full((2, 3), 1.0 + world.rank), torch.full((4,), 10.0 + world.rank)
        world.sum_([a, b])
        assert a.tolist() == [[3.0] * 3] * 2
        assert b.tolist() == [21.0] * 4
        rows = world.gather(torch.full((world.rank * 2, 2), 5.0 + world.rank))
        assert rows.tolist() == [[6.0] * 2] * 2
        weight = torch.nn.Parameter(torch.full((3,), float(world.rank)))
        world.broadcast_([weight])
        assert weight.tolist() == [0.0] * 3
        weight.grad = torch.ones(3)
        torch.optim.AdamW([weight]).step()
        assert peak_flops_per_s(2.5, world) == 5e12
        world.barrier()
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert names
    assert not [name for name in names if "gloo" in name], names


def test_a_process_alone_is_a_world_of_one():
    with join("cpu") as world:
        tensor = torch.ones(2)
        world.sum_([tensor])
        assert (world.rank, world.size, tensor.tolist()) == (0, 1, [1.0, 1.0])
        assert world.gather(torch.ones(2, 3)).tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, 2), ({"LOCAL_WORLD_SIZE": "2"}, 1), ({"OMP_NUM_THREADS": "5"}, 5)]
)
def test_threads_are_no_more_than_the_processors_of_this_process(environment, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        with join("cpu"):
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_ranks_sum_and_broadcast_and_leave_no_threads_behind(ranks):
    ended = ranks.run(member, 2)
    assert ended.codes == [0, 0], ended.errors


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="device=cpu"), join("cuda"):
        pass
