"""Streams with work stealing: free ranks run the last small pieces of a step."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch.distributed.distributed_c10d import Store
from torch.utils.data import get_worker_info

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_plan import EpochPlan, StepPlan
from reelweave.loader.plan.position import Position, read_state
from reelweave.loader.read.assembly import RankMicrobatch
from reelweave.loader.read.cache import DiskCache
from reelweave.loader.read.pipeline import ReadPipeline
from reelweave.loader.read.sample_reader import SampleReader
from reelweave.loader.stream.captions import CaptionChoice
from reelweave.loader.stream.curriculum_plans import CurriculumPlans
from reelweave.loader.stream.rank_microbatches import rank_microbatches
from reelweave.loader.stream.stealing.piece_queues import PieceQueues
from reelweave.loader.stream.stealing.step_split import StepSplit, WorkStealingConfig, split_step, victims
from reelweave.loader.stream.video_stream import VideoStream


class SharedSteps:
    """Optimizer steps of a stream in which free ranks steal small pieces of work from late ones.

        for step in SharedSteps(stream, store):
            for batch in step:                      # each iteration claims the next piece
                (batch.weight * losses_of(batch).mean()).backward()
            all_reduce(gradients); optimizer.step(); optimizer.zero_grad()

    As without work stealing, every sample of the plan is trained once in its step, by one rank. Whether a rank finds
    another piece is known only behind the batch before: `Batch.ends_step` is true where nothing is left that it could
    claim, and a step may also end behind a batch of which it is false (``slots`` is 0). The stream moves behind a step
    once it was iterated to its end. Its states are those of a plain stream, so a run resumes with or without work
    stealing. All ranks begin a pass at one state, after equally many passes.

    Args:
        stream: this rank's stream, of the regime "step" and the policy "balanced".
        store: store of all ranks, such as a TCPStore; a new one for each start of the processes.
        tail: share and size of the pieces.
        name: prefix of the keys in the store.

    Raises:
        UsageError: the stream has another regime or policy, or is read by a model-parallel group together.
    """

    def __init__(
        self,
        stream: VideoStream,
        store: Store,
        tail: WorkStealingConfig | None = None,
        name: str = "reelweave/tail",
    ) -> None:
        config = stream.config
        if config.regime != "step" or config.policy != "balanced":
            raise UsageError(
                f"steps of regime {config.regime} and policy {config.policy} cannot be shared: use regime=step and"
                " policy=balanced"
            )
        if stream.share is not None:
            raise UsageError("a stream that a model-parallel group reads together cannot share its steps")
        self._stream, self._store, self._name = stream, store, name
        self._tail = tail or WorkStealingConfig()
        self._passes = 0

    def __iter__(self) -> Iterator["SharedStep"]:
        if get_worker_info() is not None:
            raise UsageError("shared steps are taken by the process that trains, not in worker processes")
        stream, config = self._stream, self._stream.config
        state = stream.state_dict()
        homes = [stream.rank, *victims(stream.rank, stream.world_size, self._tail.readers).tolist()]
        name = f"{self._name}/{self._passes}"
        self._passes += 1
        queues = PieceQueues(self._store, name, stream.rank, homes, f"{sorted(state.items())} {self._tail}")
        plans = _StepPlanner(stream.rank, stream.world_size, homes, self._tail)
        pin = config.pin_memory and torch.cuda.is_available()
        cache = None if config.cache is None else DiskCache(config.cache.folder, config.cache.max_bytes)
        microbatches = rank_microbatches(
            CurriculumPlans(stream.source, config),
            config,
            stream.rank,
            read_state(state).position,
            plans.step,
        )
        captioned = CaptionChoice(stream.source, config)
        samples = SampleReader(stream.source, cache, stream.excluded)
        wanted = _WantedPieces(plans.read, queues)
        with ReadPipeline(samples, config, pin, captioned=captioned, wants=wanted.wants) as pipeline:
            batches, last = pipeline.run(microbatches), None
            for first in batches:
                if first.step == last:
                    wanted.decoding.popleft()  # another rank ran this piece
                    continue
                step = SharedStep(first, batches, queues, plans.made.popleft(), stream, wanted)
                yield step
                step.check_done()
                last = first.step


class SharedStep:
    """One optimizer step of one rank; it can be iterated once.

    Attributes:
        number: optimizer step of the run, from 0.
        samples: number of samples on all ranks.
    """

    def __init__(
        self,
        first: Microbatch | Pack,
        batches: Iterator[Microbatch | Pack],
        queues: PieceQueues,
        part: "_RankWork",
        stream: VideoStream,
        wanted: "_WantedPieces",
    ) -> None:
        self.number, self.samples = first.step, first.step_samples
        self._first, self._batches, self._queues, self._part = first, batches, queues, part
        self._stream, self._wanted = stream, wanted
        self._held: dict[_Piece, Microbatch | Pack] = {}
        self._ran, self._done = 0, False

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        if self._ran:
            raise UsageError(f"step {self.number} was iterated before; a step of shared pieces is run once")
        yield self._count_batch(self._first)
        for _ in range(self._part.fixed - 1):
            yield self._count_batch(next(self._batches))
        while (piece := self._claim_piece()) is not None:
            self._wanted.claimed = piece
            while piece not in self._held:
                batch = next(self._batches)
                self._held[self._wanted.decoding.popleft()] = batch
            yield self._count_batch(self._held.pop(piece))
        self._done = True
        self._held.clear()
        self._stream.load_state_dict(self._stream.state_after(replace(self._first, after=self._after_step)))

    def check_done(self) -> None:
        """Check that the step was iterated to its end.

        Raises:
            UsageError: it was not.
        """
        if not self._done:
            raise UsageError(f"step {self.number} was left before its end, and its samples would be lost")

    def _claim_piece(self) -> "_Piece | None":
        """Claim the next piece: first this rank's own, then those of the home with most pieces left."""
        local_range, *other_ranges = self._part.ranges
        if (index := self._queues.take(*local_range)) is not None:
            return _Piece(local_range.home, index)
        while other_ranges:
            remaining, fullest = max(
                (self._queues.count_left(*other), -index) for index, other in enumerate(other_ranges)
            )
            if not remaining:
                break
            if (index := self._queues.take(*other_ranges[-fullest])) is not None:
                return _Piece(other_ranges[-fullest].home, index)
        return None

    def _count_batch(self, batch: Microbatch | Pack) -> Microbatch | Pack:
        self._ran += 1
        if self._ran >= self._part.fixed and not any(
            self._queues.count_left(*pieces) for pieces in self._part.ranges
        ):
            return replace(batch, slot=self._ran - 1, slots=self._ran, after=self._after_step)
        # The number of batches is not known yet, and the stream stays before the step until it is over.
        return replace(batch, slot=self._ran - 1, slots=0, after=self._first.after)

    @property
    def _after_step(self) -> Position:
        first = self._first
        return first.after if first.ends_step else first.after.after_step()


class _PieceRange(NamedTuple):
    """Numbers of a home's pieces of one step, as `PieceQueues` counts them."""

    home: int
    begin: int
    end: int


class _Piece(NamedTuple):
    """Piece by home and number."""

    home: int
    number: int


class _RankWork(NamedTuple):
    """Reads of one rank in a step.

    Attributes:
        fixed: number of microbatches that this rank always runs.
        pieces: pieces that this rank may run, in the order of reading.
        ranges: pieces by home, this rank's own first.
    """

    fixed: int
    pieces: tuple[_Piece, ...]
    ranges: tuple[_PieceRange, ...]


class _WantedPieces:
    """Pieces that are worth decoding: those that this rank has claimed, and those that may be left.

    Attributes:
        claimed: piece that this rank has claimed last.
        decoding: pieces whose batches come next, in order.
    """

    def __init__(self, works: deque[_RankWork], queues: PieceQueues) -> None:
        self._works, self._queues = works, queues
        self._step: int | None = None
        self.claimed: _Piece | None = None
        self.decoding: deque[_Piece] = deque()

    def wants(self, planned: RankMicrobatch) -> bool:
        """Return whether a microbatch is to be decoded; called once for each, in the order of the plan."""
        if planned.before.step != self._step:
            self._step, self._work = planned.before.step, self._works.popleft()
        if (index := planned.micro.slot - self._work.fixed) < 0:
            return True
        piece = self._work.pieces[index]
        wanted = piece == self.claimed or self._queues.may_be_left(*piece)
        if wanted:
            self.decoding.append(piece)
        return wanted


class _StepPlanner:
    """Planner of one rank's work in the steps of a pass, one step after the other."""

    def __init__(self, rank: int, ranks: int, homes: Sequence[int], config: WorkStealingConfig) -> None:
        self._rank, self._ranks, self._homes, self._config = rank, ranks, homes, config
        self._begin_R = np.zeros(ranks, np.int64)
        self.made: deque[_RankWork] = deque()
        self.read: deque[_RankWork] = deque()

    def step(self, plan: EpochPlan, index: int) -> StepPlan:
        """Plan a step: this rank's fixed microbatches, its own pieces, then pieces of others from their ends on."""
        members = plan.members(index)
        costs, sizes = plan.costs(members), plan.runs(members).size
        fixed_s = plan.assignment.cost.fixed_s
        tail = split_step(costs, sizes, plan.counts(members), fixed_s, self._ranks, self._config)
        fixed = tail.fixed[tail.fixed_rank == self._rank]
        fixed = fixed[np.argsort(-costs[fixed], kind="stable")]
        pieces, ranges = self._pieces(tail)
        indices = np.array([index for _, index in pieces], np.int64)
        work = _RankWork(len(fixed), tuple(piece for piece, _ in pieces), ranges)
        self.made.append(work)
        self.read.append(work)
        return plan.cut(
            index,
            np.concatenate([fixed, tail.micro[indices]]),
            np.concatenate([np.zeros_like(fixed), tail.start[indices]]),
            np.concatenate([sizes[fixed], tail.size[indices]]),
            self._rank,
        )

    def _pieces(self, tail: StepSplit) -> tuple[list[tuple[_Piece, int]], tuple[_PieceRange, ...]]:
        """Return the pieces that this rank reads, each with its place in the split, and the ranges of the homes."""
        count_R = np.bincount(tail.home, minlength=self._ranks)
        first_R, begin_R = np.cumsum(count_R) - count_R, self._begin_R
        self._begin_R = begin_R + count_R
        of_home = [
            [(_Piece(home, begin + offset), first + offset) for offset in range(count)]
            for home, begin, first, count in zip(
                self._homes,
                *(values[self._homes].tolist() for values in (begin_R, first_R, count_R)),
                strict=True,
            )
        ]
        ranges = tuple(
            _PieceRange(home, int(begin_R[home]), int(self._begin_R[home])) for home in self._homes
        )
        local, *remote = of_home
        last_first = zip_longest(*(reversed(pieces) for pieces in remote))
        return local + [piece for turn in last_first for piece in turn if piece is not None], ranges
