"""How sequences are cut over ranks, and what that costs in bytes: arithmetic alone."""

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.ring import rectangles
from reelweave.train.parallel.context.traffic import AttentionSize, ring_bytes, ulysses_bytes


@pytest.mark.parametrize(("tokens", "ranks"), [(23, 4), (24, 4), (3, 4), (0, 2), (7, 1), (144_001, 16)])
def test_parts_cover_the_sequence_and_differ_by_one_token_at_most(tokens, ranks):
    cut = Partition.even(tokens, ranks)
    covered = [token for rank in range(ranks) for token in range(tokens)[cut.part(rank)]]
    assert covered == list(range(tokens))
    assert cut.tokens == tokens
    assert max(cut.lengths) - min(cut.lengths) <= 1


def test_adjacent_parts_join_to_those_of_fewer_ranks():
    cut = Partition((3, 0, 5, 2))
    assert cut.join(2) == Partition((3, 7))
    assert cut.join(4) == Partition((10,))
    assert cut.join(1) == cut


def test_samples_are_counted_in_each_part():
    lengths, cut = [4, 1, 6, 2], Partition((5, 0, 1, 7))
    owner = [sample for sample, length in enumerate(lengths) for _ in range(length)]
    parts = [owner[cut.part(rank)] for rank in range(4)]
    assert cut.counts(lengths) == [[part.count(sample) for sample in range(4)] for part in parts]


def test_rectangles_are_the_mask_of_samples():
    queries, keys = [2, 0, 3, 1, 0], [1, 4, 2, 0, 0]
    query_owner, key_owner = (
        torch.repeat_interleave(torch.arange(5), torch.tensor(counts)) for counts in (queries, keys)
    )
    covered = torch.zeros(6, 7, dtype=torch.int)
    for rectangle in rectangles(queries, keys):
        covered[rectangle] += 1
    assert torch.equal(covered, (query_owner[:, None] == key_owner).int())


def test_fewer_tokens_than_ranks_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group)
    with pytest.raises(UsageError, match="3 tokens cannot be cut over 4"):
        ContextParallel(2, 2).cut(3)


def test_even_parts_send_what_the_page_on_layouts_says():
    size = AttentionSize(batch=1, heads=24, width=128, value_bytes=2)
    activation = 36_000 * size.token * size.value_bytes
    for ranks in (1, 2, 3, 4, 8):
        cut = Partition.even(36_000, ranks)
        share = (ranks - 1) / ranks
        assert ulysses_bytes(size, cut, 0) == pytest.approx([4 * activation * share / ranks] * 2)
        assert ring_bytes(size, cut, 0) == pytest.approx([2 * activation * share, 6 * activation * share])
