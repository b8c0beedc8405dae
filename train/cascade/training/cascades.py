"""Training step by cascades: exchange of the manifest, plan, execution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.yaml_text import read_yaml
from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.execution.executor import Executor
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.execution.representatives import Representatives, WholeGradients
from reelweave.train.cascade.execution.step import Executed
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.online.settled import Learned
from reelweave.train.cascade.placement.topology import PRESETS, Topology
from reelweave.train.cascade.rank_order import RankOrder
from reelweave.train.cascade.training.clip_costs import NominalCosts, read_costs
from reelweave.train.cascade.training.lookahead import PlacedPlan, PlanPrefetcher
from reelweave.train.cascade.training.manifest import exchange
from reelweave.train.cascade.training.online import OnlineCorrection
from reelweave.train.cascade.training.shard_blocks import check_blocks, ranks_of_a_block
from reelweave.train.cascade.training.step_problem import (
    BatchShape,
    ClipCosts,
    announced_shape,
    problem_of,
    shape_of,
)
from reelweave.train.cascade.training.timelines import FOLDER, StepTimeline, all_runs
from reelweave.train.cascade.training.training_ops import TrainingOps, contexts_of
from reelweave.train.config.parts import CascadesConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.context.token_shard import Cuttable, cuttable
from reelweave.train.parallel.pipeline.pipeline import Weigh
from reelweave.train.step.batches import LookaheadStream
from reelweave.train.step.losses import Losses

_MOST_TOPOLOGY_BYTES = 1 << 20
_SEEDS = 2**31  # range of planner seeds; a run's seed may be negative


@dataclass(frozen=True, eq=False)
class ExecutedStep:
    """An executed step with its plan.

    Attributes:
        planned: plan of the step.
        runs: cascades that this rank ran.
    """

    planned: PlacedPlan
    runs: Sequence[Executed]


class Cascades:
    """Executor of training steps whose encoders are replicated, so that any rank can run their cascades.

    Weights of the DiT are replicated, too, or sharded over blocks of ranks, of which its groups then consist.

    Args:
        bundle: modules of the run.
        config: configuration of cascades.
        world: all ranks; GPU k of a plan is rank k.

    Attributes:
        last: last executed step, until the next one begins.
        prefetcher: prefetcher of plans.
        topology: cluster topology.

    Raises:
        UsageError: the model does not support the degrees, no degree is possible, or a file is missing.
    """

    def __init__(self, bundle: Bundle, config: CascadesConfig, world: World) -> None:
        self.last: ExecutedStep | None = None
        self._bundle, self._config, self._world = bundle, config, world
        cascade = config.cascade
        self._degrees = degrees_of(cascade.degrees, bundle.dit, world.size)
        self.topology = topology_of(cascade.topology, world.size)
        self._costs: ClipCosts = (
            read_costs(cascade.costs) if cascade.costs else NominalCosts(bundle, config, world.device)
        )
        self._places = config.compression.height * config.compression.width
        heads = cuttable(bundle.dit).full_heads if max(self._degrees) > 1 else 1
        limit = None if cascade.handoff_mib is None else int(cascade.handoff_mib * 2**20)
        self._menu = GroupMenu.of(world.size, {1, *self._degrees})
        self._block = ranks_of_a_block(config.parallel, world.size)
        check_blocks(self._block, self._menu, self.topology)
        self._pool = GroupPool(world, heads, self._menu.groups())
        # Behind the communicators, whose buffers take memory from plans.
        self._memory_bytes = _memory_bytes(cascade.memory_gib, world)
        self._executor = Executor(world, self._pool, limit, cascade.lookahead, self.topology.gpus_per_node)
        self._chosen: Representatives | None = None
        self._online = OnlineCorrection(cascade.correction, self._menu, self.topology.gpus_per_node)
        self._order = self._online.found.order
        self.prefetcher = PlanPrefetcher(self._plan_step)
        self._stream: LookaheadStream | None = None

    def prefetch_from(self, stream: object) -> None:
        """Plan steps ahead if the stream can report its next microbatches."""
        self._stream = stream if isinstance(stream, LookaheadStream) else None

    def passes(
        self, batches: Iterable[Microbatch | Pack], weigh: Weigh, clock: StepClock
    ) -> Iterator[tuple[Microbatch | Pack, Losses]]:
        """Run a step forward and backward and yield the microbatches that this rank reports, with losses.

        One rank reports each microbatch, not necessarily the one that has read it, and without pixels.

        Args:
            batches: microbatches of the step that this rank has read.
            weigh: adds a microbatch to the step; called on the rank that reports it.
            clock: clock that times this rank's activities.
        """
        local_batches, before = list(batches), self._online.found
        with clock.part("sync"):
            entries = exchange(local_batches, self._contexts, self._world)
            if self.last and self._config.cascade.correction:
                self._online.observe(self.last.planned, all_runs(self.last.runs, self._world))
        shapes, step = list(map(shape_of, entries)), local_batches[0].step
        with clock.part("other"):
            # Ranks prefetch unequally; a rank without a prepared plan must plan from what was learned `before`,
            # so that all plans agree.
            planned = self.prefetcher.take(shapes, step, before)
            self._regroup(planned.order)
            self._look_ahead(step + 1)
        work = TrainingOps(
            *(self._bundle, self._config, entries, local_batches),
            *(self._world.rank, self._world.device, weigh, clock),
        )
        if self._config.cascade.gradient_sum == "representatives":
            self._chosen = Representatives.of(planned.schedule)
        step_ops = (
            work
            if self._chosen is None
            else WholeGradients(work, list(self._bundle.trained_weights().values()))
        )
        report = self._executor.run(planned.schedule, step_ops, clock)
        self.last = ExecutedStep(planned, report.runs)
        yield from work.reported

    def sum_(self, gradients: Sequence[torch.Tensor]) -> None:
        """Replace each rank's gradients by those of all samples of the step."""
        if self._chosen is None:
            self._world.sum_(gradients)
            return
        self._chosen.sum_(self._world, gradients)

    def write_timeline(self, step: int, out: Path) -> str | None:
        """Write the timeline of the last step if one is due; a collective.

        Args:
            step: step number, from 1.
            out: folder of the run.

        Returns:
            A log line; None if no timeline is due.
        """
        interval, last = self._config.cascade.timeline_every_steps, self.last
        if last is None or interval is None or step % interval:
            return None
        runs = all_runs(last.runs, self._world)
        planned, measured = last.planned, self._config.cascade.costs is not None
        drawn = StepTimeline(step, planned.plan, planned.schedule, runs, measured)
        if self._world.rank == 0:
            drawn.write(out / FOLDER, self.topology.gpus_per_node)
        return "; ".join(
            [
                drawn.summary,
                self.prefetcher.summary(),
                *self._online.summary(),
                f"{FOLDER}/{drawn.name}.html",
            ]
        )

    def _contexts(self, batch: Microbatch | Pack) -> Sequence[TensorSpec]:
        return contexts_of(self._bundle, self._config, batch)

    def _look_ahead(self, step: int) -> None:
        coming = None if self._stream is None else self._stream.upcoming()
        if coming is not None:
            encoded = not isinstance(self._config.text, HashedTextConfig)
            self.prefetcher.begin(
                [announced_shape(batch, encoded) for batch in coming], step, self._online.found
            )

    def _regroup(self, order: RankOrder) -> None:
        """Make the groups of another order of ranks; a collective, since all ranks have the same plan."""
        if order != self._order:
            self._order = order
            self._pool.use(order.groups(self._menu))

    def _plan_step(self, shapes: Sequence[BatchShape], step: int, learned: Learned) -> PlacedPlan:
        problem = problem_of(
            *(shapes, self._costs, self._world.size, self._degrees),
            *(self._memory_bytes, self._places, self._block),
        )
        return self._online.plan_step(problem, (self._config.losses.seed + step) % _SEEDS, learned)


def degrees_of(requested: Sequence[int] | None, dit: Denoiser, ranks: int) -> tuple[int, ...]:
    """Return the degrees that a DiT may have.

    Raises:
        UsageError: there are none, or the model supports no context parallelism.
    """
    if requested is None:
        if not isinstance(dit, Cuttable):
            return (1,)
        return tuple(2**power for power in range(ranks.bit_length()))
    degrees = tuple(sorted({degree for degree in requested if degree <= ranks}))
    if not degrees:
        raise UsageError(
            f"train.cascade.degrees={tuple(requested)}: all are above the {ranks} ranks of this run"
        )
    if max(degrees) > 1:
        cuttable(dit)
    return degrees


def topology_of(name: str | None, ranks: int) -> Topology:
    """Return a preset, or the topology in a file; by default one node of all ranks.

    Raises:
        UsageError: the name is neither preset nor file, the file is invalid, or the ranks do not fill whole
            nodes.
    """
    if name is None:
        return Topology(gpus_per_node=ranks)
    if name in PRESETS:
        return PRESETS[name].holding(ranks)
    try:
        named = f"train.cascade.topology={name} is none of {', '.join(PRESETS)}, and as a file it"
        data = read_named(Path(name), _MOST_TOPOLOGY_BYTES, named)
        return Topology.model_validate(read_yaml(data, f"train.cascade.topology={name}").values).holding(
            ranks
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its beginning"
        raise UsageError(
            f"train.cascade.topology={name} is no topology, at {where}: {first['msg']}"
        ) from error


def _memory_bytes(gib: float | None, world: World) -> float:
    """Return the bytes of a GPU that plans may use, the same on all ranks; a collective."""
    if gib is not None:
        return gib * 2**30
    if world.device.type == "cpu":
        return float("inf")
    free, _ = torch.cuda.mem_get_info(world.device)
    return float(usable_bytes(free, torch.cuda.memory_reserved(world.device), world))


def usable_bytes(free: int, reserved: int, world: World) -> int:
    """Return what PyTorch has and may still have on the GPU with the least; a collective.

    The rest belongs to CUDA's context, the buffers of communicators and other processes.

    Args:
        free: bytes that the GPU has left.
        reserved: bytes that PyTorch's allocator holds.
        world: all ranks.
    """
    return -world.largest(-(free + reserved))
