"""Bytes that a rank sends, against volumes that follow from the tensors."""

import json
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import join


def member(out: str) -> None:
    """A rank of three that performs every kind of operation."""
    with join("cpu") as world:
        group = dist.new_group([0, 1, 2])
        # Ranks of the pair are not the world's.
        pair = dist.new_subgroups_by_enumeration([[1, 2], [0]])[0]
        rank, seven = dist.get_rank(group), torch.ones(7)
        with torch.inference_mode(), count_sent_bytes() as sent:
            dist.all_reduce(seven, group=group)
            dist.all_gather([torch.empty(2) for _ in range(3)], torch.ones(2), group=group)
            dist.all_gather_into_tensor(torch.empty(6), torch.ones(2), group=group)
            dist.reduce_scatter_tensor(torch.empty(2), torch.ones(6), group=group)
            dist.all_to_all_single(torch.empty(3, 5), torch.ones(3, 5), group=group)
            # Rank r sends r rows to each rank.
            rows = torch.ones(3 * rank, 4, dtype=torch.float64)
            dist.all_to_all_single(torch.empty(3, 4).double(), rows, [0, 1, 2], [rank] * 3, group=group)
            dist.broadcast(torch.ones(4), group=group, group_src=1)
            parts = [torch.empty(2) for _ in range(3)]
            dist.gather(torch.ones(2), parts if rank == 2 else None, group=group, group_dst=2)
            dist.scatter(torch.empty(2), parts if rank == 2 else None, group=group, group_src=2)
            dist.reduce(torch.ones(4), group=group, group_dst=0)
            operations = [
                dist.P2POp(dist.isend, torch.ones(5), group=group, group_peer=(rank + 1) % 3),
                dist.P2POp(dist.irecv, torch.empty(5), group=group, group_peer=(rank - 1) % 3),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            dist.barrier(group)
        with count_sent_bytes() as others:
            if world.rank:
                # As from a traced graph or DTensor, and from another thread.
                functional.all_reduce(torch.ones(8), "sum", pair).sum()
                other = threading.Thread(target=dist.all_reduce, args=[torch.ones(2)], kwargs={"group": pair})
                other.start()
                other.join()
            else:
                dist.all_reduce(torch.ones(3), group=pair)
        dist.all_reduce(seven)
    found = {
        "kinds": sent.by_kind(),
        "within": {kind: list(each) for kind, each in sent.within(group).items()},
        "total": sent.total,
        "others": {kind: list(each) for kind, each in others.within(pair).items()},
    }
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))


def test_a_rank_counts_what_it_sends_by_group_and_kind(ranks, tmp_path):
    ended = ranks.run(member, 3, str(tmp_path))
    assert ended.codes == [0, 0, 0], ended.errors
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    by_kind = {
        # Seven elements in chunks of 3, 2 and 2: 2 x 7 less one's own and the next.
        "all_reduce": [9 * 4, 10 * 4, 9 * 4],
        "all_gather": [2 * (2 * 2 * 4)] * 3,
        "reduce_scatter": [2 * 2 * 4] * 3,
        "all_to_all": [2 * 5 * 4 + 2 * rank * 4 * 8 for rank in range(3)],
        "broadcast": [0, 4 * 4, 4 * 4],
        "gather": [2 * 4, 2 * 4, 0],
        "scatter": [0, 0, 2 * 2 * 4],
        "reduce": [0, 4 * 4, 4 * 4],
        "send": [5 * 4] * 3,
    }
    for rank in range(3):
        expected = {kind: numbers[rank] for kind, numbers in by_kind.items()}
        assert found[rank]["kinds"] == expected
        assert found[rank]["total"] == sum(expected.values())
        calls = {kind: 2 if kind in ("all_gather", "all_to_all") else 1 for kind in by_kind}
        assert found[rank]["within"] == {kind: [calls[kind], expected[kind]] for kind in by_kind}
    assert sum(by_kind["all_reduce"]) == 2 * (3 - 1) * 7 * 4
    assert found[0]["others"] == {"all_reduce": [1, 0]}
    assert found[1]["others"] == found[2]["others"] == {"all_reduce": [2, 8 * 4 + 2 * 4]}
