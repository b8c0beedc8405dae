import pytest
import torch
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import World
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import DATA, MODEL, SUMMED, Mesh, Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from tests.train.clips import tiny_config


def test_by_default_all_ranks_are_replicas():
    assert Mesh.of(ParallelConfig(), 6) == Mesh(dp_replicate=6)


def test_the_rest_is_what_the_other_degrees_leave():
    config = ParallelConfig(dp_replicate=2, dp_shard="rest", ring=2, tp=2)
    assert Mesh.of(config, 24) == Mesh(dp_replicate=2, dp_shard=3, ring=2, tp=2)
    assert Mesh.of(ParallelConfig(dp_replicate=2, dp_shard=3), 6).size == 6


@pytest.mark.parametrize(
    ("degrees", "ranks", "told"),
    [
        ({"tp": 3}, 8, r"parallel\.dp_replicate=rest x parallel\.tp=3 must divide the 8 ranks"),
        (
            {"dp_replicate": 2, "dp_shard": 2},
            8,
            r"dp_replicate=2 x parallel\.dp_shard=2 must multiply to the 8",
        ),
        (
            {"dp_replicate": 1, "dp_shard": "rest", "ulysses": 16},
            8,
            r"parallel\.ulysses=16 must divide the 8",
        ),
        ({"dp_replicate": 4}, 2, r"parallel\.dp_replicate=4 must multiply to the 2 ranks"),
    ],
)
def test_degrees_that_do_not_fit_are_refused_by_name(degrees, ranks, told):
    with pytest.raises(UsageError, match=told):
        Mesh.of(ParallelConfig(**degrees), ranks)


def test_neighbours_divide_matrices_and_model_peers_train_on_the_same_samples():
    mesh = Mesh(dp_replicate=2, dp_shard=2, ring=2, tp=2)
    assert mesh.partition(["tp"])[:2] == [[0, 1], [2, 3]]
    assert mesh.partition(CONTEXT)[:2] == [[0, 2], [1, 3]]
    assert mesh.partition(MODEL) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert mesh.partition(DATA)[0] == [0, 4, 8, 12]
    assert mesh.partition(SUMMED) == [list(range(0, 16, 2)), list(range(1, 16, 2))]
    for dimensions in ((), ("dp_replicate", "tp"), ("dp_shard",)):
        groups = mesh.partition(dimensions)
        assert sorted(rank for group in groups for rank in group) == list(range(16))
        assert {len(group) for group in groups} == {mesh.degree(dimensions)}


def test_a_layout_without_two_sizes_or_without_a_compiler_is_refused():
    with pytest.raises(ValidationError, match="cannot both be the rest"):
        ParallelConfig(dp_shard="rest")
    with pytest.raises(ValidationError, match="compile=true"):
        ParallelConfig(activation_checkpointing="memory_budget")


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"tp": 3, "dp_replicate": 2}, r"parallel\.tp=3 must divide model\.heads=2"),
        ({"tp": 2, "dp_shard": 3, "shard": "optimizer"}, r"parallel\.shard=optimizer .* parallel\.tp"),
        ({"ulysses": 3, "dp_replicate": 2}, r"parallel\.ulysses=3 must divide the model's 2 heads"),
        ({"pp": 3, "dp_replicate": 2}, r"parallel\.pp=3 must be at most model\.layers=2"),
    ],
)
def test_what_a_model_or_the_trainer_cannot_do_is_refused(degrees, told):
    config = tiny_config().model_copy(update={"parallel": ParallelConfig(**degrees)})
    with pytest.raises(UsageError, match=told):
        lay_out(config.step, Ranks.of(config.parallel, World(0, 6, torch.device("cpu"))))
