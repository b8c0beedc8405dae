import numpy as np
import pytest

from reelweave.train.cascade.placement.communication import Traffic, communication, exchange_s
from reelweave.train.cascade.placement.topology import PRESETS, Topology
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.cascade.simulation.cases import arachne

DGX = PRESETS["dgx-h100"].holding(32)
VAE, DIT = Cascade(0, Module.VAE), Cascade(0, Module.DIT)


def two(vae: tuple[int, ...], dit: tuple[int, ...], topology: Topology = DGX):
    """What a VAE's handoff of 1 GB and a DiT's exchange of 16 GB cost."""
    schedule = Schedule.of([Run(VAE, 0.0, 1.0, vae), Run(DIT, 1.0, 5.0, dit)], topology.gpus)
    traffic = Traffic(np.array([[0, 0, 16e9]]), np.array([[0, 1e9, 0]]))
    return communication(schedule, topology, traffic, topology.links)


def test_within_a_node_nothing_is_lost():
    for gpus in ((0, 1), (0, 1, 2, 3), tuple(range(8))):
        assert two((0,), gpus).lost_R == pytest.approx([0, 0])


def test_each_priority_costs_when_it_is_missed():
    within, near = (0, 1, 2, 3), (0, 1, 8, 9)
    off_rail, unbalanced = (0, 1, 10, 11), (0, 8, 9, 10)
    found = [exchange_s(DGX, gpus, 16e9) for gpus in (within, near, off_rail, unbalanced)]
    # A GPU sends the parts of 2 of 4 through its card, each a 16th of the whole; 3 of 4 where it is alone.
    assert found[0] == pytest.approx(3e9 / DGX.node_bytes_per_s)
    assert found[1] == pytest.approx(2e9 / DGX.card_bytes_per_s)
    assert found[2] == pytest.approx(found[1] / DGX.spine_share)
    assert found[3] > 1.5 * found[1]


def test_a_balanced_group_of_two_nodes_sends_less_than_the_planner_counts():
    gpus = tuple(range(16))
    lost_s = two((0,), gpus).lost_R[1]
    assert lost_s == pytest.approx((8 - 15) * 16e9 / 16**2 / 45e9)


def test_a_card_far_away_and_shared_is_slow():
    box = PRESETS["pcie"].holding(16)
    near, far = exchange_s(box, (0, 8), 4e9), exchange_s(box, (2, 10), 4e9)
    assert near == pytest.approx(1e9 / box.card_bytes_per_s)
    assert far == pytest.approx(near / box.reached["NODE"])
    assert exchange_s(box, (0, 1, 8, 9), 16e9) == pytest.approx(2 * 2e9 / box.card_bytes_per_s)


def test_handoffs():
    subset, superset = two((0, 1, 2, 3), (0, 1)), two((0, 1), (0, 1, 2, 3))
    beyond, apart, elsewhere = two((0,), (0, 8)), two((0,), (1, 2)), two((0,), (8, 9))
    seconds = [one.handoffs[0].seconds for one in (subset, superset, beyond, apart, elsewhere)]
    assert seconds == pytest.approx([0, 1 / 300, 1 / 45, 1 / 2.5, 2 / 2.5])
    assert [one.disjoint_bytes for one in (subset, superset, beyond, apart)] == [0, 0, 0, 1e9]


def test_traffic_of_the_case_study():
    from reelweave.train.cascade.costs.cost_model import SampleShapes
    from reelweave.train.cascade.simulation.cases import HUNYUAN_720P

    samples = SampleShapes(np.array([1, 2]), np.array([13, 37]), np.array([14_400, 36_000]))
    traffic = Traffic.of(HUNYUAN_720P, samples)
    assert traffic.exchanged_SM.shape == arachne().has_SM[:2].shape
    assert traffic.exchanged_SM[1, Module.DIT] == 72_000 * HUNYUAN_720P.dit.exchanged_bytes
    assert traffic.result_SM[:, Module.VAE].tolist() == [14_400 * 128, 72_000 * 128]
    assert not traffic.result_SM[:, Module.DIT].any()
