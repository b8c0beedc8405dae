"""What ranks run in the tests of DiTs whose weights are sharded over blocks of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.train.cascade.execution.executor import Executor
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.config.model import DiTConfig, MMDiTConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World, join
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.mesh import Ranks
from tests.train.cascade.execution.plans import HEADS, Plan, TinyWork, random_plan, small_config

MODELS = {
    "dit": DiTConfig(hidden=32, heads=HEADS, layers=3, patch=(1, 2, 2)),
    "mmdit": MMDiTConfig(hidden=32, heads=HEADS, layers=3, patch=(1, 2, 2), adaln_rank=8),
}
ALLOWED = 1e-10


def sharded_plan(seed: int, ranks: int, block: int) -> Plan:
    """A random plan whose DiTs run on any whole blocks; often a block has none."""
    plan, draw = random_plan(seed, ranks), np.random.default_rng([seed, ranks, block])
    blocks = ranks // block
    active = draw.permutation(blocks)[: int(draw.integers(1, blocks + 1))]
    runs = []
    for run in plan.schedule.runs:
        if run.cascade.module == Module.DIT:
            most = min(len(active), plan.samples[run.cascade.sample].tokens // block)
            chosen = sorted(draw.permutation(active)[: int(draw.integers(1, most + 1))].tolist())
            gpus = tuple(one * block + rank for one in chosen for rank in range(block))
            run = run._replace(gpus=gpus)
        runs.append(run)
    return Plan(plan.samples, Schedule.of(runs, ranks))


class GatheredPeak(TorchDispatchMode):
    """Largest number of gathered values that a sharded model holds, looked at before every operator.

    Attributes:
        values: the largest number so far.
    """

    def __init__(self, model: Denoiser) -> None:
        super().__init__()
        # FSDP exchanges the parameters of modules; to go through the modules again takes longer than an operator.
        self._places = [module._parameters for module in model.modules() if module._parameters]
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = (one for place in self._places for one in place.values())
        now = sum(one.numel() for one in held if one is not None and not isinstance(one, DTensor))
        self.values = max(self.values, now)
        return func(*args, **(kwargs or {}))


class ShardedRunner:
    """Runs plans with one sharded model on this rank, and with a whole one on rank 0.

    Args:
        world: all ranks.
        model: name in `MODELS`.
        block: ranks that shard the weights.
        plans: plans to run.
    """

    def __init__(self, world: World, model: str, block: int, plans: list[Plan]) -> None:
        self.world = world
        parallel = ParallelConfig(dp_shard=block, schedule="cascade")
        config: TrainConfig = small_config().model_copy(update={"model": MODELS[model], "parallel": parallel})
        self.layout = lay_out(config.step, Ranks.of(parallel, world))
        self.whole = Bundle(config)
        self.whole.dit.to(torch.float64)
        generator, own = torch.Generator().manual_seed(5), dict(self.layout.bundle.dit.named_parameters())
        with torch.no_grad():  # what begins at zero would hide gradients behind it
            for name, weight in self.whole.dit.named_parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.2)
                pieces.copy_(own[name], weight.detach())
        menu = dict.fromkeys(run.gpus for plan in plans for run in plan.schedule.runs)
        self.executor = Executor(world, GroupPool(world, HEADS, menu))

    def run(self, plan: Plan) -> tuple[float, int]:
        """Return the relative error of the gradients on rank 0, and the most values gathered on any rank."""
        layout, dit = self.layout, self.layout.bundle.dit
        layout.zero_gradients()
        work = TinyWork(layout.bundle, plan.samples, self.world.rank, torch.float64)
        with GatheredPeak(dit) as peak:
            report = self.executor.run(plan.schedule, work, StepClock(self.world))
        assert report.left_bytes == 0
        assert all(isinstance(one, DTensor) for one in dit.parameters()), "weights are left gathered"
        layout.sum_gradients()
        gradients = {name: weight.grad for name, weight in layout.weights.items()}
        found = pieces.gather_tensors(layout.place(gradients))
        most = self.world.largest(peak.values)
        if self.world.rank:
            return 0.0, most
        self.whole.zero_grad()
        alone = TinyWork(self.whole, plan.samples, 0, torch.float64)
        for number in range(len(plan.samples)):
            alone.alone(number)
        pairs = [
            (found[f"dit.{name}"], one.grad if one.grad is not None else torch.zeros_like(one))
            for name, one in self.whole.dit.named_parameters()
        ]
        difference = sum(float((a - b).square().sum()) for a, b in pairs)
        return (difference / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5, most

    @property
    def held(self) -> int:
        """Number of values of the denoiser that this rank holds between steps."""
        return sum(weight.numel() for name, weight in self.layout.weights.items() if name.startswith("dit."))

    @property
    def allowed(self) -> tuple[int, int]:
        """Values that a rank may hold, rows rounded up, and may gather: a block, and all outside blocks."""
        block = self.layout.ranks.mesh.dp_shard
        weights = [one.shape for one in self.whole.dit.parameters()]
        units = [sum(one.numel() for one in unit.parameters()) for unit in self.whole.dit.repeated()]
        outside = sum(shape.numel() for shape in weights) - sum(units)
        return sum(-(-shape[0] // block) * shape[1:].numel() for shape in weights), max(units) + outside


def measure_sharded(model: str, block: int, first: int, count: int, out: str) -> None:
    """Each plan has the gradients of one process, and no rank holds or gathers more than it may.

    Rank 0 writes errors, numbers of values, and how often blocks had no DiT.
    """
    torch.set_default_dtype(torch.float64)
    with join("cpu", lost_after_s=60.0) as world:
        plans = [sharded_plan(seed, world.size, block) for seed in range(first, first + count)]
        runner = ShardedRunner(world, model, block, plans)
        held, gathered = runner.allowed
        assert world.largest(runner.held) <= held
        errors, most, idle, dits = [], 0, 0, 0
        for seed, plan in enumerate(plans, first):
            error, peak = runner.run(plan)
            assert error <= ALLOWED, f"plan {seed} of {model}, blocks of {block}: relative error {error:.2e}"
            assert peak <= gathered, f"plan {seed}: {peak} values are gathered, of {gathered} allowed"
            errors, most = [*errors, error], max(most, peak)
            ran = [run.gpus for run in plan.schedule.runs if run.cascade.module == Module.DIT]
            dits += len(ran)
            idle += world.size // block - len({rank // block for gpus in ran for rank in gpus})
        total = sum(one.numel() for one in runner.whole.dit.parameters())
        told = {"error": max(errors), "held": world.largest(runner.held), "gathered": most, "total": total}
    if world.rank == 0:
        Path(out).write_text(json.dumps(told | {"idle": idle, "dits": dits, "allowed": [held, gathered]}))
