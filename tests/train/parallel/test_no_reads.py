"""No layout looks at values on the device: its step runs on tensors that have none.

`tests/train/loop/test_host_waits.py` holds the same, and copies, for what all layouts share.
"""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from reelweave.train.config.model import DiTConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.dit import parallelize
from reelweave.train.parallel.layout import layout_of
from reelweave.train.parallel.mesh import DATA, SUMMED, Mesh, Ranks
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.step.squared_errors import DenoisingInputs
from tests.thorough import but
from tests.train.clips import tiny_config

CPU = torch.device("cpu")
FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
LAYOUTS = {
    "hsdp": {"dp_replicate": "rest", "dp_shard": 2},
    "zero1": FSDP | {"shard": "optimizer"},
    "ring, ulysses": {"ring": 2, "ulysses": 2},
    "tensor": FSDP | {"tp": 2},
    "replicas": {"dp_replicate": "rest"},
    "fsdp": FSDP,
    "fsdp, once a step": FSDP | {"reduce_gradients": "step"},
    "fsdp, ulysses": FSDP | {"ulysses": 2},
    "fsdp, checkpointed": FSDP | {"activation_checkpointing": "selective"},
}


@pytest.fixture
def world():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield World(0, 4, CPU)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", but(("hsdp",), LAYOUTS, ("ring, ulysses",)))
def test_a_step_of_no_layout_reads_values(world, name):
    config = tiny_config().model_copy(
        update={
            "model": DiTConfig(hidden=32, heads=4, layers=2),
            "dtype": "bfloat16",
            "parallel": ParallelConfig(**LAYOUTS[name]),
        }
    )
    mesh = Mesh.of(config.parallel, world.size)
    ranks = Ranks(mesh, world)
    ranks.node_size = world.size
    bundle = Bundle(config, meta=True, unread=True)
    parallelize(bundle.dit, ranks, config)
    # Groups compare what ranks say, so they are made while tensors have values.
    _ = ranks.weights["dp_replicate", "dp_shard"], ranks.node
    for dimensions in (DATA, CONTEXT, SUMMED, ("dp_shard", *CONTEXT), ("dp_replicate",), ("tp",), ("pp",)):
        ranks.along(*dimensions)
    if mesh.degree(CONTEXT) > 1:
        _ = ranks.context
    with FakeTensorMode(allow_non_fake_inputs=True):
        layout = layout_of(config.parallel, mesh)(bundle.to_empty(device=CPU), config, ranks)
        layout.share()
        layout.zero_gradients()
        for last in (False, True):
            latents = torch.empty(2, bundle.dit.channels, 3, 8, 8)
            text, mask = torch.empty(2, 5, config.text.width), torch.ones(2, 5, dtype=torch.bool)
            asked = DenoisingInputs([latents], [latents], torch.empty(2), text, mask, packed=False)
            with torch.autocast("cpu", torch.bfloat16):
                errors_B = layout.errors(bundle.dit, asked)
            layout.before_backward(last)
            errors_B.mean().backward()
        layout.sum_gradients()
        norm = layout.norm()
        assert norm.shape == ()
        layout.clip(1.0, norm)
        layout.refresh()  # what an update does beside the optimizer, which on a processor reads its own count
