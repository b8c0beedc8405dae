"""The grid of ranks that sample."""

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.sampling.config import SampleLayoutConfig
from reelweave.train.sampling.ranks.mesh import VIDEO, SamplingMesh, SamplingRanks


def test_prompts_are_what_the_other_degrees_leave():
    assert SamplingMesh.of(SampleLayoutConfig(), 6) == SamplingMesh(prompts=6)
    mesh = SamplingMesh.of(SampleLayoutConfig(cfg=2, ring=3, ulysses=2, vae_ranks=12), 24)
    assert mesh == SamplingMesh(prompts=2, cfg=2, ring=3, ulysses=2)
    assert mesh.partition(VIDEO) == [list(range(12)), list(range(12, 24))]
    assert mesh.partition(["ulysses"])[:2] == [[0, 1], [2, 3]]
    assert mesh.partition(["cfg"])[0] == [0, 6]


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"cfg": 3}, r"prompts=rest x cfg=3 must divide the 8 ranks.*makes 3.*divisors of 8 \(1, 2, 4, 8\)"),
        ({"prompts": 1, "ring": 4}, r"layout ring=4 must multiply to the 8 ranks"),
        ({"prompts": 1}, r"layout of one rank must multiply to the 8"),
        ({"cfg": 2, "vae_ranks": 3}, r"vae_ranks=3: only 2 ranks make a video"),
    ],
)
def test_impossible_degrees_are_refused_by_name_with_the_divisors(degrees, told):
    with pytest.raises(UsageError, match=told):
        SamplingMesh.of(SampleLayoutConfig(**degrees), 8)


def test_a_rank_knows_its_group_of_prompts():
    world = World(5, 8, torch.device("cpu"))
    assert SamplingRanks(SamplingMesh(prompts=4, cfg=2), world).number == 2
