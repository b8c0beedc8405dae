"""The simulated curation cluster, against cases that can be reckoned by hand and a formula."""

import math

import pytest

from tests.bench.curate_cluster import Cluster, simulate


def test_without_losses_the_largest_sources_go_first() -> None:
    found = simulate([1, 2, 3, 4, 5], Cluster(nodes=1, cores=2))
    # 5 and 4 begin; 3 follows 4 and 2 follows 5, until 7 both; then 1.
    assert (found.wall_s, found.work_s, found.lost_s, found.losses) == (8, 15, 0, 0)
    assert found.paid_s == 16


def test_a_lost_node_loses_only_what_it_was_at() -> None:
    # 4,097 sources are 4,096 blocks, the first of two sources; its node is lost in the second of them.
    costs = [10.0, 10.0, *[1e-6] * 4095]
    found = simulate(costs, Cluster(2, 1, replace_s=None, notice_s=2.0), lost_at={0: 13.0})
    assert found.losses == 1
    assert found.lost_s == pytest.approx(3, abs=0.01)
    assert found.wall_s == pytest.approx(13 + 2 + 10, abs=0.01)
    assert found.paid_s == pytest.approx(13 + 25, abs=0.01)
    dealt = simulate(costs, Cluster(2, 1, replace_s=None, notice_s=2.0), lost_at={0: 13.0}, dealt=True)
    assert dealt.wall_s == pytest.approx(10, abs=0.01)
    assert dealt.losses == 0


def test_what_is_done_twice_is_what_the_formula_says() -> None:
    """A source of t seconds on nodes lost at rate r takes (e^(rt) - 1) / r seconds in the mean (Ross, restart)."""
    rate, cost = 2.0, 900.0
    found = simulate([cost] * 4000, Cluster(40, 5, rate, replace_s=0.0), seed=3)
    per_s = rate / 3600
    expected = (math.expm1(per_s * cost) / per_s - cost) * 4000
    assert found.lost_s == pytest.approx(expected, rel=0.1)
    assert found.paid_s >= found.work_s + found.lost_s


def test_work_is_never_lost_for_good_and_equal_seeds_are_equal() -> None:
    cluster = Cluster(8, 4, losses_per_hour=1.0, replace_s=60.0)
    costs = [float(30 + n % 700) for n in range(5000)]
    first, again, other = (simulate(costs, cluster, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first.work_s == sum(costs)
    assert first.losses > 10
