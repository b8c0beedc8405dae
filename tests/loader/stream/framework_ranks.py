"""The streaming examples, and what docs/frameworks.md prints for Megatron, on ranks started as torchrun does it."""

import importlib.util
import os
import re
import sys
import textwrap
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from reelweave.loader.batch import Microbatch
from tests.loader.stream_clips import BUCKETS
from tests.ports import reserved_port

IMPORTED_FIRST = ("accelerate", "lightning")
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "frameworks.md"


class Tiny(nn.Module):
    """In float64, so that only rounding far below a weight's share can differ."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))

    def forward(self, colours_BC: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            colours_BC = colours_BC + torch.tanh(block(colours_BC))
        return colours_BC


def losses_of(model: nn.Module, batch: Microbatch) -> torch.Tensor:
    colours_BC = batch.video_BCTHW.double().mean((2, 3, 4)) / 255
    wanted_B1 = torch.tensor([[int(key[3:]) / 10] for key in batch.keys], dtype=torch.float64)
    return (model(colours_BC) - wanted_B1).square().mean(1)


def example(name: str) -> nn.Module:
    """Trains as examples/stream_NAME.py does and returns the model."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"stream_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train("my-dataset")


def megatron(total_steps: int) -> nn.Module:
    """Runs the code of the page's section within a step as Megatron-Core makes it."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith("Megatron\n"))
    code = textwrap.dedent(
        "\n".join(line for line in text.splitlines() if line.startswith("    ") or not line)
    )
    dist.init_process_group()
    model = Tiny()
    exec(compile(code, PAGE.name, "exec"), {"train_step": Schedule(model), "total_steps": total_steps})
    return model


class Schedule:
    """A step as Megatron-Core makes it: forward_backward_no_pipelining, its DDP and an optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.ddp = model, None

    def __call__(self, forward_step: Any, data_iterator: Any, num_microbatches: int) -> None:
        if self.ddp is None:
            self.ddp = DistributedDataParallel(self.model)
            self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)
        for number in range(num_microbatches):
            with nullcontext() if number + 1 == num_microbatches else self.ddp.no_sync():
                output, loss_func = forward_step(data_iterator, self.ddp)
                (loss_func(output)[0] / num_microbatches).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def run(folder: str, out: str, names: list[str], total_steps: int) -> None:
    """Runs recipes in a folder with ``my-dataset`` and saves what became of the model."""
    os.chdir(folder)
    os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    os.environ.update(TORCHELASTIC_RUN_ID="recipes", GROUP_RANK="0")
    own = sys.modules["my_model"] = ModuleType("my_model")
    own.Model, own.losses_of, own.BUCKETS = Tiny, losses_of, BUCKETS
    rank, held = int(os.environ["RANK"]), ExitStack()
    for name in names:
        print(name, file=sys.stderr, flush=True)
        model = megatron(total_steps) if name == "megatron" else example(name)
        weights = [
            weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in model.parameters()
        ]
        if rank == 0:
            torch.save([weight.detach() for weight in weights], Path(out) / f"{name}.pt")
        # The next rendezvous is on another port: an early rank would join the one that ends.
        following = [held.enter_context(reserved_port()) if rank == 0 else None]
        dist.broadcast_object_list(following)
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(following[0])
