"""How what a module gives comes to its DiT."""

import torch

from reelweave.train.cascade.execution.handoffs import handoff_bytes, plan_transfers, route, share
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.packing import empty, pack_tensors, unpack_tensors
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run
from tests.train.cascade.execution.plans import Sample, TinyWork, tiny_bundle


def handoff(vae, dit, owner=0, stored=False):
    sample = Sample(seed=0, batch=3, frames=3, width=8, owner=owner, stored=stored, text="none")
    runs = [Run(Cascade(0, Module.DIT), 1.0, 2.0, dit)]
    if not stored:
        runs.append(Run(Cascade(0, Module.VAE), 0.0, 1.0, vae))
    moves = plan_transfers(runs, TinyWork(tiny_bundle(torch.float32), [sample], 0, torch.float32), 4)
    return moves.handoffs[0], moves


def test_latents_stay_where_the_dit_runs():
    found, _ = handoff((0, 1, 2), (1, 2))
    assert found.message is None
    assert not found.broadcasts


def test_a_taker_that_has_them_gives_them_to_the_others():
    found, _ = handoff((1, 2), (0, 2, 3))
    assert found.message is None
    assert found.broadcasts
    assert found.first == 2


def test_groups_that_lie_apart_get_one_message_within_a_node_where_there_is_a_way():
    found, _ = handoff((2, 3), (6, 7))
    assert (found.message.source, found.message.target) in {(2, 6), (2, 7), (3, 6), (3, 7)}
    assert found.broadcasts
    assert route((1, 5), (6, 8), sample=0, ranks_per_node=4) == (5, 6)


def test_samples_take_turns_among_ways_that_are_alike():
    assert len({route((0, 1), (2, 3), sample, 4) for sample in range(4)}) == 4


def test_stored_latents_come_from_their_owner():
    found, _ = handoff((), (1, 2), owner=5, stored=True)
    assert found.stored
    assert found.message.source == 5
    assert handoff((), (1, 2), owner=2, stored=True)[0].message is None


def test_pixels_go_to_the_ranks_that_encode_them():
    _, moves = handoff((1, 2), (3,), owner=2)
    assert [one.message and one.message.target for one in moves.inputs] == [1, None, 1]
    sizes = handoff_bytes(moves)[0]
    assert sizes[1] - sizes[2] == 2 * 3 * 3 * 8 * 8
    assert sizes[3] == moves.handoffs[0].bytes


def test_every_part_is_made_by_one_rank():
    for parts in range(1, 6):
        for degree in range(1, 5):
            made = [number for rank in range(degree) for number in share(parts, degree, rank)]
            assert sorted(made) == list(range(parts))


def test_a_message_holds_tensors_of_any_types_and_sizes():
    tensors = [
        torch.randn(3, 5),
        torch.rand(7) < 0.5,
        torch.randn(2, 3, dtype=torch.float64).T,
        torch.randn(0, 4),
        torch.randn(5).bfloat16(),
    ]
    for some in (tensors, tensors[:1]):
        parts = [TensorSpec(tuple(tensor.shape), tensor.dtype) for tensor in some]
        message = pack_tensors(some)
        assert message.shape == empty(parts, torch.device("cpu")).shape
        for found, tensor in zip(unpack_tensors(message, parts), some, strict=True):
            assert torch.equal(found, tensor)
