"""When ranks get another order."""

import pytest

from reelweave.train.cascade.online.settled import SettledOrder
from reelweave.train.cascade.rank_order import RankOrder


@pytest.mark.parametrize(
    ("slow", "per_node", "expected"),
    [
        ((), 4, range(12)),
        ((1,), None, (0, 11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1)),
        ((1,), 4, (8, 9, 10, 11, 4, 5, 6, 7, 0, 3, 2, 1)),
        ((10, 11), 4, range(12)),
        ((0, 5), 4, (8, 9, 10, 11, 4, 7, 6, 5, 3, 1, 2, 0)),
        (range(12), 4, range(12)),
        ((1,), 5, (0, 4, 2, 3, 1, 5, 6, 7, 8, 9, 10, 11)),
    ],
)
def test_slow_ranks_are_last_in_their_node_and_so_are_their_nodes(slow, per_node, expected):
    order = RankOrder.of(12, slow, per_node)
    assert order.ranks == tuple(expected)
    assert all(order.ranks[place] == rank for rank, place in order.places.items())


def test_only_stragglers_that_stay_move_and_none_moves_back():
    order = SettledOrder(8, 8, max_changes=2)
    seen = [order.observe(slow).ranks[-2:] for slow in ({1}, {1}, set(), {2}, {3}, {2}, {2}, {4}, {4}, {4})]
    assert seen == [(6, 7), (6, 1), (6, 1), (6, 1), (6, 1), (6, 1), *[(1, 2)] * 4]
    assert order.changes == 2


def test_a_straggler_that_is_last_anyway_costs_no_new_order():
    order = SettledOrder(8, 8, max_changes=1)
    assert [order.observe(slow).ranks[-2:] for slow in ({7}, {7}, {3}, {3, 7})] == [(6, 7)] * 3 + [(3, 7)]
    assert order.changes == 1
