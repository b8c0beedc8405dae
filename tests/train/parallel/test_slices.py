"""Which rank has which slices of videos: pure arithmetic."""

import math

import pytest
import torch

from reelweave.train.parallel.context.slices import SliceSharding, slice_orders

PACK = [(3, 4, 5), (1, 8, 2), (7, 2, 2), (1, 1, 1)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("grids", [[(3, 3, 5)], [(1, 2, 3)], PACK], ids=["video", "image", "pack"])
@pytest.mark.parametrize("axis", ["frame", "place"])
def test_each_slice_is_whole_on_one_rank_and_in_its_grid(axis, grids, ranks):
    found = SliceSharding.of(grids, axis, ranks)
    assert sorted(torch.cat([found.tokens(rank) for rank in range(ranks)]).tolist()) == list(
        range(sum(map(math.prod, grids)))
    )
    first = 0
    for number, (T, rows, columns) in enumerate(grids):
        owners = found.owner[first : first + T * rows * columns].view(T, rows * columns)
        slices = owners if axis == "frame" else owners.T
        assert torch.equal(slices, slices[:, :1].expand_as(slices))
        # Slices lie on the ranks in turn, those of a sample behind those of the one before.
        assert slices[:, 0].diff().ge(0).all()
        assert first == 0 or found.owner[first - 1] <= slices[0, 0]
        for rank in range(ranks):
            count = int((slices[:, 0] == rank).sum())
            wanted = (count, rows, columns) if axis == "frame" else (T, 1, count)
            assert found.grids[rank][number] == wanted
        first += T * rows * columns


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("slices", [1, 3, 8, 13, 100])
def test_slices_alike_are_shared_out_to_one(slices, ranks):
    counts = [grid[0][0] for grid in SliceSharding.of([(slices, 2, 2)], "frame", ranks).grids]
    assert max(counts) - min(counts) <= 1


def test_a_pack_is_shared_out_by_tokens():
    for axis, longest in (("frame", 20), ("place", 7)):
        found = SliceSharding.of(PACK, axis, 4)
        counts = torch.bincount(found.owner, minlength=4)
        even = sum(map(math.prod, PACK)) / 4
        assert (counts - even).abs().max() <= longest


def test_orders_of_a_grid_are_made_once():
    """Alternating buckets and packs each find theirs again; a rank's moves are those of the other's."""
    one, pack = ((3, 4, 5),), tuple(PACK)
    first = slice_orders(one, 2, 0)
    other = slice_orders(pack, 2, 0)
    assert slice_orders(one, 2, 0) is first
    assert slice_orders(pack, 2, 0) is other
    for grids in (one, pack):
        ranks = [slice_orders(grids, 2, rank) for rank in range(2)]
        for way, back in (("go", "back"), ("back", "go")):
            for rank, orders in enumerate(ranks):
                assert [getattr(peer, way).receive[rank] for peer in ranks] == getattr(orders, way).send
                assert getattr(orders, way).receive == getattr(orders, back).send
