import pytest
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import resolve
from reelweave.train.cascade.placement.levels import Levels, handoff_hops, levels
from reelweave.train.cascade.placement.topology import PRESETS, Topology
from reelweave.train.cascade.training.cascades import topology_of

DGX = PRESETS["dgx-h100"].holding(16)
ALONE = (0,) * 4


def test_a_node_of_eight_cards_is_eight_rails():
    assert DGX.nodes == 2
    assert DGX.card_of_gpu == DGX.rail_of_gpu == tuple(range(8))
    assert (DGX.links.gpus_per_node, DGX.links.network_bytes_per_s) == (8, 45e9)


def test_gpus_share_the_nearest_card():
    box = PRESETS["pcie"].holding(16)
    assert box.card_of_gpu == (0,) * 4 + (1,) * 4
    assert box.links.network_bytes_per_s == pytest.approx(box.card_bytes_per_s / 4)


def test_a_topology_is_read_from_yaml(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "nodes: 2\ngpus_per_node: 2\ndistances: [[PIX, SYS], [SYS, PIX]]\nrails: [0, 0]\nbrokers: [1]\n"
    )
    found = resolve(Topology, file, [])
    assert (found.gpus, found.rail_of_gpu, found.brokers) == (4, (0, 0), (1,))
    assert (
        topology_of(str(file), ranks=4) == found
    )  # `train.cascade.topology` takes the file of `plan --topology`
    file.write_text('{"gpus_per_node": 4}')
    assert topology_of(str(file), ranks=4).gpus == 4
    file.write_text("gpus: 4")
    with pytest.raises(UsageError, match=r"cluster.yaml is no topology, at gpus: Extra inputs"):
        topology_of(str(file), ranks=4)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"nodes": 2}, "need distances"),
        ({"gpus_per_node": 2, "distances": [["PIX"]]}, "1 rows for 2 GPUs"),
        ({"gpus_per_node": 2, "distances": [["PIX"], []]}, "as many columns"),
        ({"gpus_per_node": 1, "distances": [["PIX"]], "rails": [0, 1]}, "2 entries for 1"),
        ({"gpus_per_node": 1, "distances": [["NVL"]]}, "PIX"),
        ({"brokers": [1]}, "from 0 to 0"),
        ({"reached": {"PIX": 1.0}}, "lacks NODE"),
    ],
)
def test_what_is_wrong_is_named(wrong, told):
    with pytest.raises(ValidationError, match=told):
        Topology.model_validate(wrong)


def test_one_node_without_a_network_does_not_become_two():
    assert PRESETS["single"].holding(8).nodes == 1
    with pytest.raises(UsageError, match="16 GPUs take 2 nodes"):
        PRESETS["single"].holding(16)


def test_the_four_priorities_in_the_order_of_the_paper():
    within = (2, 3, 4, 5)
    near, far = (0, 1, 8, 9), (0, 4, 8, 12)
    off_rail, unbalanced, three = (0, 1, 10, 11), (0, 8, 9, 10), (0, 8, 16, 17)
    topology = PRESETS["dgx-h100"].holding(24)
    found = [levels(topology, gpus, ()) for gpus in (within, near, far, off_rail, unbalanced, three)]
    assert found == sorted(found)
    assert found[0] == (*ALONE, 0, 0)
    assert found[1] == (1, 0, 0, 20, 0, 0)  # two nodes, in each twice PIX and twice NODE
    assert found[2] == (1, 0, 0, 24, 0, 0)
    assert found[3][:3] == (1, 0, 4)
    assert found[4][:3] == (1, 2, 2)
    assert found[5][0] == 2


def test_cards_on_one_leaf_switch_are_one_rail():
    topology = Topology.model_validate({**DGX.model_dump(), "rails": (0,) * 8})
    assert levels(topology, (0, 1, 10, 11), ())[2] == 0


def test_overlap_comes_before_the_broker():
    vae = (0, 1, 2, 3)
    assert levels(DGX, (0, 1, 2, 3, 4, 5), [vae]) == Levels(*ALONE, 0, 0)
    assert levels(DGX, (2, 3, 4, 5), [vae]) == Levels(*ALONE, 2, 0)
    assert levels(DGX, (4, 5, 6, 7), [vae]) == Levels(*ALONE, 4, 0)
    assert levels(DGX, (8, 9, 10, 11), [vae]) == Levels(*ALONE, 4, 1)


@pytest.mark.parametrize(("giver", "taker", "hops"), [(0, 1, 0), (0, 8, 1), (8, 0, 1), (8, 16, 2), (8, 9, 2)])
def test_a_single_broker_is_best_beside_one_of_the_main_ranks(giver, taker, hops):
    topology = Topology.model_validate({**PRESETS["dgx-h100"].model_dump(), "nodes": 3, "brokers": (0,)})
    assert handoff_hops(topology, giver, taker) == hops
