"""What ranks run in the tests of the executor."""

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from reelweave.train.cascade.execution.executor import Executor
from reelweave.train.cascade.execution.handoffs import plan_transfers
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run, Schedule
from reelweave.train.distributed.world import join
from reelweave.train.measure.timings import StepClock
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.parallel.context.context import ContextParallel
from tests.train.cascade.execution.plans import HEADS, Plan, Runner, Sample, TinyWork, random_plan


def check_plans(first: int, count: int, name: str, limit_bytes: int | None = None) -> None:
    """Each of some random plans gives the gradients of one process on every rank, and leaves nothing behind."""
    dtype = getattr(torch, name)
    allowed = {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    with join("cpu", lost_after_s=60.0) as world:
        plans = {seed: random_plan(seed, world.size) for seed in range(first, first + count)}
        runner = Runner(world, dtype, plans.values(), limit_bytes)
        for seed, plan in plans.items():
            report = runner.gradients(plan)
            assert report.left_bytes == 0, f"plan {seed}: {report.left_bytes} bytes are left"
            assert limit_bytes is None or report.handoff_bytes <= limit_bytes
            assert runner.same_everywhere()
            error = runner.error(plan)
            assert error <= allowed, f"plan {seed} on {world.size} ranks: relative error {error:.2e}"


def measure_plans(first: int, count: int, name: str, out: str) -> None:
    """The same for many plans; rank 0 writes how far off each is, and what the plans were like."""
    dtype = getattr(torch, name)
    allowed = {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    told = {"errors": [], "cascades": 0, "idle": 0, "sent": 0, "spread": 0, "here": 0, "groups": 0}
    with join("cpu", lost_after_s=30.0) as world:
        plans = {seed: random_plan(seed, world.size) for seed in range(first, first + count)}
        runner = Runner(world, dtype, plans.values())
        for seed, plan in plans.items():
            assert runner.gradients(plan).left_bytes == 0
            assert runner.same_everywhere()
            told["errors"].append(runner.error(plan))
            assert told["errors"][-1] <= allowed, f"plan {seed}: relative error {told['errors'][-1]:.2e}"
            runs = plan.schedule.runs
            moves = plan_transfers(runs, TinyWork(runner.bundle, plan.samples, world.rank, dtype), world.size)
            told["cascades"] += len(runs)
            told["idle"] += world.size - len({rank for run in runs for rank in run.gpus})
            for move in moves.handoffs:
                kind = "sent" if move.message else "spread" if move.broadcasts else "here"
                told[kind] += 1
        told["groups"] = runner.pool.made
    if world.rank == 0:
        Path(out).write_text(json.dumps(told))


def check_representatives(first: int, count: int) -> None:
    """Where there are representatives, their sum is that of one process."""
    with join("cpu", lost_after_s=60.0) as world:
        plans = {seed: random_plan(seed, world.size) for seed in range(first, first + count)}
        runner, exact = Runner(world, torch.float64, plans.values()), 0
        for seed, plan in plans.items():
            if runner.by_representatives(plan):
                exact += 1
                assert runner.same_everywhere()
                error = runner.error(plan)
                assert error <= 1e-10, f"plan {seed}: relative error {error:.2e}"
        assert 0 < exact < count


def train_by(first: int, second: int, steps: int) -> None:
    """Two ways to plan the same samples have the same weights after some steps."""
    with join("cpu", lost_after_s=60.0) as world:
        found = []
        for seeds in (first, second):
            samples = [random_plan(step, world.size).samples for step in range(steps)]
            plans = [replanned(own, 100 * seeds + step, world.size) for step, own in enumerate(samples)]
            runner = Runner(world, torch.float64, plans)
            optimizer = torch.optim.AdamW(runner.weights, lr=1e-3)
            for plan in plans:
                runner.gradients(plan)
                optimizer.step()
            found.append([weight.detach().clone() for weight in runner.weights])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def replanned(samples: tuple[Sample, ...], seed: int, ranks: int) -> Plan:
    """Other groups and another order for given samples."""
    draw = random.Random(seed)
    runs = []
    for number, sample in enumerate(samples):
        modules = (
            [Module.DIT] + [Module.VAE] * (not sample.stored) + [Module.TEXT] * (sample.text == "cascade")
        )
        for module in modules:
            degree = 1 if module == Module.TEXT else draw.randint(1, min(ranks, sample.tokens))
            gpus = tuple(sorted(draw.sample(range(ranks), degree)))
            start = draw.random() + (module == Module.DIT)
            runs.append(Run(Cascade(number, module), start, start + 0.1, gpus))
    return Plan(samples, Schedule.of(runs, ranks))


def shuffled_on(victim: int) -> None:
    """One rank has the cascades in another order than the others."""
    with join("cpu", lost_after_s=60.0) as world:
        plan = random_plan(11, world.size)
        runner = Runner(world, torch.float32, [plan])
        runs = list(plan.schedule.runs)
        if world.rank == victim:
            starts = [run.start_s for run in runs if run.cascade.module != Module.DIT][::-1]
            others = iter(starts)
            runs = [
                run if run.cascade.module == Module.DIT else run._replace(start_s=next(others))
                for run in runs
            ]
        runner.gradients(Plan(plan.samples, Schedule(tuple(runs), world.size)))


def killed_in_a_step(victim: int) -> None:
    """One rank is gone when it comes to its second cascade."""

    class Mortal(TinyWork):
        def train(self, *arguments, **named) -> None:
            if self.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            super().train(*arguments, **named)

    with join("cpu", lost_after_s=6.0) as world:
        sample = Sample(seed=0, batch=2, frames=3, width=8, owner=0, stored=False, text="none")
        everybody = tuple(range(world.size))
        runs = [
            run
            for number in range(3)
            for run in (
                Run(Cascade(number, Module.VAE), number, number + 0.1, (number,)),
                Run(Cascade(number, Module.DIT), number + 0.5, number + 0.6, everybody),
            )
        ]
        schedule = Schedule.of(runs, world.size)
        runner = Runner(world, torch.float32, [Plan((sample,) * 3, schedule)])
        work = Mortal(runner.bundle, [sample] * 3, world.rank, torch.float32)
        runner.executor.run(schedule, work, StepClock(world))


WAYS = {
    "in place": ((0, 1, 2), (1, 2)),
    "to more": ((1, 2), (0, 1, 2, 3)),
    "overlapping": ((0, 1), (1, 3)),
    "apart": ((0, 1), (2, 3)),
}


class Checked(TinyWork):
    """Trains nothing and looks whether what came is what was made, to the last bit."""

    def train(
        self,
        sample: int,
        given: Mapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        own, alone = self.samples[sample], TinyWork(self.bundle, self.samples, 0, self.dtype)
        owner_s = TinyWork(self.bundle, self.samples, own.owner, self.dtype)
        pixels = owner_s.source(Cascade(sample, Module.VAE))
        expected = (
            pixels
            if own.stored
            else [alone.make(Cascade(sample, Module.VAE), [0], [clip])[0] for clip in pixels]
        )
        assert all(torch.equal(*pair) for pair in zip(given[Module.VAE], expected, strict=True))
        self.trained = [*getattr(self, "trained", []), sample]


def check_handoffs() -> None:
    """Each way of a handoff, with latents that are made and stored ones."""
    with join("cpu", lost_after_s=60.0) as world:
        runs, samples = [], []
        for vae, dit in WAYS.values():
            for stored in (False, True):
                number = len(samples)
                samples.append(Sample(number, 3, 5, 12, owner=number % 4, stored=stored, text="none"))
                if not stored:
                    runs.append(Run(Cascade(number, Module.VAE), number, number + 0.1, vae))
                runs.append(Run(Cascade(number, Module.DIT), number + 10, number + 11, dit))
        schedule = Schedule.of(runs, world.size)
        runner = Runner(world, torch.float32, [Plan(tuple(samples), schedule)])
        work = Checked(runner.bundle, samples, world.rank, torch.float32)
        report = runner.executor.run(schedule, work, StepClock(world))
        assert report.left_bytes == 0
        assert work.trained == [
            run.run.cascade.sample for run in report.runs if run.run.cascade.module == Module.DIT
        ]


class Large(TinyWork):
    """Latents of a MiB each, which nobody looks at."""

    PART = TensorSpec((1 << 18,), torch.float32)

    def input_specs(self, cascade):
        return []

    def output_specs(self, cascade):
        return [self.PART] if cascade.module == Module.VAE else []

    def make(self, cascade, numbers, taken):
        return [torch.full(self.PART.shape, float(cascade.sample)) for _ in numbers]

    def train(self, sample, given, context, first):
        assert given[Module.VAE][0][-1] == sample


class SettledMemory(LiveMemory):
    """Fails if live bytes stay above a bound after an operator.

    Threads of Gloo and of the sender hold a tensor for some moments after its transfer has ended, as the machine lets
    them run. What the executor itself holds stays.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def __torch_dispatch__(self, *args, **kwargs):
        out = super().__torch_dispatch__(*args, **kwargs)
        self.settle(self._max_bytes)
        return out

    def settle(self, max_bytes: int) -> None:
        """Wait until at most ``max_bytes`` live."""
        deadline = time.monotonic() + 10
        while self.live > max_bytes:
            assert time.monotonic() < deadline, f"{self.live / 2**20:.1f} MiB live on"
            time.sleep(0.001)


def check_room(limit_mib: int | None, most_mib: int) -> None:
    """All VAEs come first in the plan, on other ranks than the DiTs; what lies here is counted by the tensors."""
    with join("cpu", lost_after_s=60.0) as world:
        count, half = 12, world.size // 2
        runs = [Run(Cascade(s, Module.VAE), s, s + 1.0, (s % half,)) for s in range(count)]
        runs += [Run(Cascade(s, Module.DIT), 50.0 + s, 51.0 + s, (half, half + 1)) for s in range(count)]
        sample = Sample(0, 1, 3, 8, owner=0, stored=False, text="none")
        work = Large(None, [sample] * count, world.rank, torch.float32)
        limit = None if limit_mib is None else limit_mib << 20
        executor = Executor(world, GroupPool(world, HEADS, [(half, half + 1)]), limit)
        for _ in range(2):
            # A tensor that is just used up may meet one that comes.
            with SettledMemory((most_mib + 1) << 20) as memory:
                report = executor.run(Schedule.of(runs, world.size), work, StepClock(world))
                memory.settle(1 << 19)
            assert report.left_bytes == 0
            assert limit is None or report.handoff_bytes <= limit
        everywhere = torch.tensor(report.handoff_bytes)
        dist.all_reduce(everywhere, dist.ReduceOp.MAX)
        assert int(everywhere) == most_mib << 20
