"""Trace replay: plans, places and simulates many iterations with noise."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, model_validator

from reelweave.loader.base.arrays import Floats
from reelweave.loader.base.named_file import read_named_text
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.buckets.tokens import Compression, sequence_length
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.settings import Settings
from reelweave.train.cascade.costs.cost_model import CostModel, SampleShapes
from reelweave.train.cascade.placement.communication import Traffic, communication
from reelweave.train.cascade.placement.mapper import place
from reelweave.train.cascade.placement.topology import Topology
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.simulation.simulate import Noise, execute, flops_cv

MAX_TRACE_BYTES = 64 << 20
_MOST = 1_000_000_000


class TraceBatch(Settings):
    """A microbatch of a trace: videos of one shape, or a number of tokens with cached latents."""

    frames: int = Field(0, ge=0, le=_MOST, description="frames of each video")
    height: int = Field(0, ge=0, le=_MOST, description="height in pixels")
    width: int = Field(0, ge=0, le=_MOST, description="width in pixels")
    tokens: int = Field(0, ge=0, le=_MOST, description="tokens per sample, S; 0: derived from the shape")
    batch: int = Field(1, ge=1, le=_MOST, description="number of videos, B")

    @model_validator(mode="after")
    def _check_known(self) -> "TraceBatch":
        if not self.tokens and not self.frames:
            raise ValueError("a sample needs frames, height and width, or tokens")
        return self


class Trace(Settings):
    """Microbatches of a cluster, step by step."""

    gpus: int = Field(ge=1, le=65_536, description="number of GPUs")
    gpus_per_node: int = Field(8, ge=1, le=65_536, description="GPUs of a node")
    steps: tuple[Annotated[tuple[TraceBatch, ...], Field(min_length=1)], ...] = Field(
        min_length=1, description="microbatches of each iteration"
    )

    def samples(self, compression: Compression, text_tokens: int = 0) -> list[SampleShapes]:
        """Return the samples of each step.

        Args:
            compression: pixels per token, for shapes without tokens.
            text_tokens: number of text tokens included in S of these shapes.

        Raises:
            UsageError: a sample has neither tokens nor a size; only a cost table can handle frames alone.
        """
        for step_index, step in enumerate(self.steps):
            for sample, batch in enumerate(step):
                if not batch.tokens and not (batch.height and batch.width):
                    raise UsageError(
                        f"at step {step_index}, sample {sample}: a sample needs frames, height and width, or tokens;"
                        " frames alone are for a --cost-table that has no sizes"
                    )
        return [_samples(step, compression, text_tokens) for step in self.steps]


def read_trace(file: Path) -> Trace:
    """Read a trace from a JSON file.

    Raises:
        UsageError: the file is unreadable or invalid; names the wrong key.
    """
    try:
        return Trace.model_validate_json(read_named_text(file, MAX_TRACE_BYTES, f"the trace {file}"))
    except ValidationError as error:
        first = error.errors()[0]
        where = _where(first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{file} is no trace{f', at {where}' if where else ''}: {message}") from error


def _where(loc: Sequence[int | str]) -> str:
    """Describe the place of a wrong value: step 0, sample 3, key frames."""
    step, sample, key = (*loc[1:], None, None, None)[:3]
    if loc[:1] != ("steps",) or step is None:
        return f"key {'.'.join(map(str, loc))}" if loc else ""
    named = [f"step {step}", f"sample {sample}", f"key {key}"]
    return ", ".join(named[: len(loc) - 1])


def samples_of(microbatches: Microbatches, buckets: Sequence[Bucket]) -> SampleShapes:
    """Return the samples of one step of a workload or of a dataset's stream (`reelweave.loader.simulation`).

    Args:
        microbatches: microbatches of all ranks in the step.
        buckets: buckets that they refer to.
    """
    sizes_K3 = np.array([(bucket.frames, bucket.height, bucket.width) for bucket in buckets])
    frames, height, width = sizes_K3[microbatches.bucket].T
    return SampleShapes(microbatches.batch, frames, microbatches.length, height, width)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Cluster and cost model to plan for.

    Attributes:
        costs: cost model on these GPUs.
        topology: cluster topology.
        gpus: number of GPUs.
        degrees: degrees that the DiT supports.
        memory_bytes: memory of one GPU.
    """

    costs: CostModel
    topology: Topology
    gpus: int
    degrees: tuple[int, ...]
    memory_bytes: float

    def problem(self, samples: SampleShapes) -> Problem:
        """Return the problem of an iteration, without degrees above the number of GPUs."""
        degrees = tuple(degree for degree in self.degrees if degree <= self.gpus)
        return self.costs.problem(samples, self.gpus, degrees, self.memory_bytes)


Planner = Callable[[Problem], Schedule]
Mapper = Callable[[Schedule, Topology], Schedule]


class ReplayedStep(NamedTuple):
    """One replayed step of a trace.

    Attributes:
        planned_s: makespan of the plan.
        executed: runs with simulated times.
        idle: idle share of GPU time until the last cascade ends.
        flops_cv: coefficient of variation of FLOPs over GPUs.
        plan_ms: CPU time of planning.
        place_ms: CPU time of placement.
    """

    planned_s: float
    executed: Schedule
    idle: float
    flops_cv: float
    plan_ms: float
    place_ms: float


@dataclass(frozen=True)
class ReplaySummary:
    """Means over the steps of a replayed trace.

    Attributes:
        steps: number of steps.
        iteration_s: mean simulated makespan.
        planned_s: mean planned makespan.
        idle: idle share of all GPU time.
        flops_cv: coefficient of variation of FLOPs over GPUs within a step.
        plan_ms: CPU time of planning a step.
        place_ms: CPU time of placing a step.
    """

    steps: int
    iteration_s: float
    planned_s: float
    idle: float
    flops_cv: float
    plan_ms: float
    place_ms: float

    @classmethod
    def of(cls, iterations: Iterable[ReplayedStep]) -> "ReplaySummary":
        """Summarize at least one iteration."""
        replayed = list(iterations)
        total_s = sum(iteration.executed.makespan_s for iteration in replayed)
        return cls(
            steps=len(replayed),
            iteration_s=total_s / len(replayed),
            planned_s=float(np.mean([iteration.planned_s for iteration in replayed])),
            idle=sum(iteration.idle * iteration.executed.makespan_s for iteration in replayed) / total_s
            if total_s
            else 0.0,
            flops_cv=float(np.mean([iteration.flops_cv for iteration in replayed])),
            plan_ms=float(np.mean([iteration.plan_ms for iteration in replayed])),
            place_ms=float(np.mean([iteration.place_ms for iteration in replayed])),
        )


def replay(
    steps: Iterable[SampleShapes],
    cluster: Cluster,
    planner: Planner,
    mapper: Mapper = place,
    noise: Noise | None = None,
    seed: int = 0,
) -> Iterable[ReplayedStep]:
    """Plan, place and simulate step after step.

    Args:
        steps: samples of each step.
        cluster: cluster to plan for.
        planner: any planner.
        mapper: any mapper, such as one that keeps the planner's GPU numbers.
        noise: deviation of times; None: planned times plus the placement's cost.
        seed: seed of the noise, which depends on the planner only through the order of cascades.
    """
    for step_index, samples in enumerate(steps):
        problem = cluster.problem(samples)
        # Planning and placing are timed apart.
        began = time.process_time()
        planned = planner(problem)
        middle = time.process_time()
        placed_schedule = mapper(planned, cluster.topology)
        ended = time.process_time()
        comm_costs = communication(
            placed_schedule, cluster.topology, Traffic.of(cluster.costs, samples), cluster.costs.links
        )
        # The same draws for every planner: they follow from seed and step.
        draw = np.random.default_rng([seed, step_index])
        executed = execute(
            placed_schedule, noise.factors(placed_schedule, draw) if noise else None, comm_costs
        )
        yield ReplayedStep(
            planned.makespan_s,
            executed,
            executed.idle,
            flops_cv(executed, arithmetic(cluster.costs, samples)),
            (middle - began) * 1e3,
            (ended - middle) * 1e3,
        )


def arithmetic(costs: CostModel, samples: SampleShapes) -> Floats:
    """Return the compute of cascades in seconds of one GPU, without communication, float64 [S, M].

    Proportional to FLOPs if all modules run at one utilization.
    """
    one_gpu = np.array([1])
    found_SM = np.zeros((len(samples.length), len(Module)))
    found_SM[:, Module.DIT] = costs.dit.seconds(samples.batch, samples.length, one_gpu, costs.links)[:, 0]
    if costs.vae:
        seconds_S = costs.vae.seconds(samples.batch, samples.size_S3, one_gpu)[:, 0]
        found_SM[:, Module.VAE] = np.where(np.isfinite(seconds_S), seconds_S, 0.0)
    if costs.text:
        found_SM[:, Module.TEXT] = costs.text.seconds(samples.batch)
    return found_SM


def _samples(step: Sequence[TraceBatch], compression: Compression, text_tokens: int) -> SampleShapes:
    def column(name: str) -> Any:
        return np.array([getattr(shape, name) for shape in step], np.int64)

    frames, height, width, tokens = map(column, ("frames", "height", "width", "tokens"))
    token_counts = sequence_length(text_tokens, np.maximum(frames, 1), height, width, compression)
    return SampleShapes(column("batch"), frames, np.where(tokens > 0, tokens, token_counts), height, width)
