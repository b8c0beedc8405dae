"""Rank functions: states of sharded models are saved in one layout and loaded in another."""

import json
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from reelweave.loader.storage.local import LocalStorage
from reelweave.train.checkpoint.names import folder_of
from reelweave.train.checkpoint.pieces import Tensors
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.world import World, join
from tests.train.saved import newest

Layout = list[int]
"""Of the mesh: [n] is FSDP over n ranks, [r, n] is HSDP, [] replicates."""


def model() -> nn.Module:
    """Small, with sizes that no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 5, bias=False), nn.LayerNorm(5))


def values() -> dict[str, dict[str, torch.Tensor]]:
    """What the groups hold once they are trained: other numbers everywhere."""
    generator = torch.Generator().manual_seed(1)

    def drawn(suffix: str = "") -> dict[str, torch.Tensor]:
        named = sorted(model().named_parameters())
        return {f"{n}{suffix}": torch.randn(p.shape, generator=generator) for n, p in named}

    moments = drawn(".exp_avg") | drawn(".exp_avg_sq")
    return {"model": drawn(), "optimizer": moments | {"step": torch.tensor(5.0)}, "ema": drawn()}


def groups(world: World, layout: Layout) -> dict[str, dict[str, torch.Tensor]]:
    """A model sharded by FSDP2, and the state beside it, all zero."""
    net = model()
    if layout:
        names = ("replicate", "shard")[-len(layout) :]
        fully_shard(net, mesh=init_device_mesh("cpu", tuple(layout), mesh_dim_names=names))
    weights = dict(net.named_parameters())
    with torch.no_grad():
        for weight in weights.values():
            weight.zero_()
    moments = {f"{n}.{m}": torch.zeros_like(w) for n, w in weights.items() for m in ("exp_avg", "exp_avg_sq")}
    ema = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    return {"model": weights, "optimizer": moments | {"step": torch.tensor(0.0)}, "ema": ema}


def fill(tensors: Tensors, whole: Tensors) -> None:
    """Gives each tensor its value, whatever its layout."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            value = whole[name]
            if isinstance(tensor, DTensor):
                value = distribute_tensor(value, tensor.device_mesh, tensor.placements)
            tensor.copy_(value)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save(out: str, layout: Layout) -> None:
    """Saves `values` in a layout."""
    with join("cpu") as world:
        state = groups(world, layout)
        for group, tensors in state.items():
            fill(tensors, values()[group])
        place = open_storage(f"{out}/checkpoints")
        Checkpoints(place, CheckpointConfig(), world, state).save(
            CheckpointState(step=1, stream={}, config={}), last=True
        )


class HeadersRead(LocalStorage):
    """Storage that counts how often the beginning of each part is read."""

    heads: ClassVar[Counter[str]] = Counter()

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.heads.update([path] * (start == 0 and path.endswith(".safetensors")))
        return super().read(path, start, length)


def load(out: str, layout: Layout) -> None:
    """Loads them in another one, and finds them equal, bit by bit; one rank reads a part's header for all."""
    with join("cpu") as world:
        state = groups(world, layout)
        place = HeadersRead(Path(out) / "checkpoints")
        checkpoints = Checkpoints(place, CheckpointConfig(), world, state)
        found = checkpoints.latest()
        assert found is not None
        checkpoints.load_(found)
        heads = [
            name for text in world.gather_text("\n".join(place.heads.elements())) for name in text.split()
        ]
        assert sorted(heads) == sorted(f"{folder_of(found.step)}/{part}" for part in found.all_parts)
        for group, tensors in state.items():
            for name, tensor in tensors.items():
                assert torch.equal(full(tensor), values()[group][name]), (group, name)


def load_damaged(out: str, layout: Layout, name: str) -> None:
    """Fails on every rank in words, though only one of them reads the damaged part."""
    with join("cpu") as world:
        state = groups(world, layout)
        checkpoints = Checkpoints(open_storage(f"{out}/checkpoints"), CheckpointConfig(), world, state)
        found = checkpoints.latest()
        assert found is not None
        with pytest.raises(RunError, match=f"{name} is damaged"):
            checkpoints.load_(found)


def load_with_torch(out: str, layout: Layout) -> None:
    """The same by torch's own reader of sharded safetensors."""
    with join("cpu") as world:
        for group, tensors in groups(world, layout).items():
            reader = HuggingFaceStorageReader(str(newest(Path(out)) / group))
            dist.checkpoint.load({**tensors}, storage_reader=reader)
            for name, tensor in tensors.items():
                assert torch.equal(full(tensor), values()[group][name]), (group, name)


def save_stages(out: str) -> None:
    """Two stages of a pipeline with two ranks each: a rank has the tensors of its stage alone, split by columns."""
    with join("cpu") as world:
        stages = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
        stage = world.rank // 2
        whole = torch.arange(12.0).reshape(3, 4) + 100 * stage
        columns = distribute_tensor(whole, stages[stage], [Shard(1)])
        copies = distribute_tensor(whole, stages[stage], [Replicate()])
        model = {f"stage{stage}.columns": columns, f"stage{stage}.copies": copies}
        place = open_storage(f"{out}/checkpoints")
        Checkpoints(place, CheckpointConfig(), world, {"model": model}).save(
            CheckpointState(step=1, stream={}, config={}), last=True
        )


def load_stages(out: str) -> None:
    """All of it on every rank."""
    with join("cpu") as world:
        model = {f"stage{s}.{kind}": torch.zeros(3, 4) for s in (0, 1) for kind in ("columns", "copies")}
        place = open_storage(f"{out}/checkpoints")
        checkpoints = Checkpoints(place, CheckpointConfig(), world, {"model": model})
        found = checkpoints.latest()
        assert found is not None
        checkpoints.load_(found)
        for name, tensor in model.items():
            assert torch.equal(tensor, torch.arange(12.0).reshape(3, 4) + 100 * int(name[5])), name


def stored_bytes(out: Path) -> list[int]:
    """Of the tensors that each rank wrote."""
    found: dict[str, int] = {}
    for path in newest(out).glob("*/*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__")
        ends = [entry["data_offsets"][1] for entry in header.values()]
        found[path.name] = found.get(path.name, 0) + max(ends, default=0)
    return [found[name] for name in sorted(found)]
