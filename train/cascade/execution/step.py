"""Execution of one step on one rank, event by event."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from reelweave.train.cascade.execution.channel import Channel, PendingReceive
from reelweave.train.cascade.execution.handoff_buffer import HandoffBuffer
from reelweave.train.cascade.execution.handoffs import Handoff, Input, Transfers, share
from reelweave.train.cascade.execution.ops import CascadeOps
from reelweave.train.cascade.execution.order import Event, HandoffBytes, Open
from reelweave.train.cascade.execution.packing import empty, pack_tensors, unpack_tensors
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.schedule import Run
from reelweave.train.distributed.world import World
from reelweave.train.measure.timings import Moment, StepClock, moment


class Executed(NamedTuple):
    """A cascade that this rank has run its part of.

    Attributes:
        run: planned run.
        start_s: time at which all inputs were here, in seconds from the synchronized begin of the step.
        end_s: time at which this rank finished.
    """

    run: Run
    start_s: float
    end_s: float


class StepReport(NamedTuple):
    """Execution report of a step on this rank.

    Attributes:
        runs: executed cascades, in order.
        handoff_bytes: peak bytes of handoffs.
        left_bytes: handoff bytes at the end: 0.
    """

    runs: list[Executed]
    handoff_bytes: int
    left_bytes: int


class AgreedStep:
    """A step that all ranks have agreed upon.

    Args:
        events: execution order.
        moves: transfers.
        sizes: handoff bytes of each sample on each rank.
        limit: handoff buffer in bytes.
        work: computation of the cascades.
        pool: prepared process groups.
        world: all ranks.
        clock: clock that times this rank's activities.
    """

    def __init__(
        self,
        events: Sequence[Event],
        moves: Transfers,
        sizes: HandoffBytes,
        limit: int | None,
        work: CascadeOps,
        pool: GroupPool,
        world: World,
        clock: StepClock,
    ) -> None:
        self._events, self._work, self._pool, self._clock = events, work, pool, clock
        self._rank, self._device = world.rank, world.device
        self._inputs: dict[Cascade, list[Input]] = {}
        for stored_input in moves.inputs:
            self._inputs.setdefault(stored_input.cascade, []).append(stored_input)
        self._handoffs: Mapping[Cascade, Handoff] = {move.cascade: move for move in moves.handoffs}
        self._tags = {transfer: tag for tag, (transfer, _) in enumerate(moves.messages)}
        self._of_sample: dict[int, list[Input | Handoff]] = {}
        for transfer, _ in moves.messages:
            self._of_sample.setdefault(transfer.cascade.sample, []).append(transfer)
        self._last: dict[int, int] = {}
        ends = {}
        for index, event in enumerate(events):
            if isinstance(event, Open):
                self._last[event.sample] = index
            else:
                ends[event.cascade.sample] = index  # the DiT is last
                if self._rank in event.gpus:
                    self._last[event.cascade.sample] = index
        local_sizes = {sample: ranks[self._rank] for sample, ranks in sizes.items() if self._rank in ranks}
        self._room = HandoffBuffer(local_sizes, ends, limit)
        self._expected: dict[Input | Handoff, PendingReceive] = {}
        self._kept: dict[Cascade, list[torch.Tensor]] = {}

    def run(self, channel: Channel | None) -> StepReport:
        """Run all events of the step.

        Args:
            channel: channel to other ranks; None with one rank.
        """
        self._channel = channel
        marks: list[tuple[Run, Moment, Moment]] = []
        began = moment(self._device)
        # Every rank follows all events in the same order, and acts in those that name it.
        for index, event in enumerate(self._events):
            if isinstance(event, Open):
                with self._clock.part("sync"):
                    self._open(event.sample)
                sample = event.sample
            else:
                sample = event.cascade.sample
                if self._rank in event.gpus:
                    act = self._train if event.cascade.module == Module.DIT else self._make
                    start = act(event)
                    marks.append((event, start, moment(self._device)))
            if self._last[sample] == index:
                self._room.ends(sample)
        with self._clock.part("sync"):
            self._room.clear()
        # The GPU runs behind the host: times are read when it has come to the last event.
        if marks:
            marks[-1][2].synchronize()
        runs = [
            Executed(run, began.elapsed_time(start) / 1000, began.elapsed_time(end) / 1000)
            for run, start, end in marks
        ]
        return StepReport(runs, self._room.peak, self._room.used)

    def _open(self, sample: int) -> None:
        """Post receives of a sample and send its stored outputs."""
        self._room.take(sample)
        for transfer in self._of_sample.get(sample, []):
            message = transfer.message
            assert message
            assert self._channel
            if message.target == self._rank:
                self._expected[transfer] = self._channel.expect(
                    message.parts, message.source, self._tags[transfer]
                )
            elif message.source == self._rank:
                if isinstance(transfer, Input):
                    self._send(transfer, [self._work.source(transfer.cascade)[transfer.part_index]])
                elif transfer.stored:
                    self._send(transfer, self._work.source(transfer.cascade))

    def _send(self, transfer: Input | Handoff, tensors: Sequence[torch.Tensor]) -> None:
        assert transfer.message
        assert self._channel
        sent = self._channel.send(tensors, transfer.message.target, self._tags[transfer])
        self._room.sends(transfer.cascade.sample, sent)

    def _make(self, run: Run) -> Moment:
        """Run a text or VAE cascade and return its begin."""
        cascade, degree = run.cascade, len(run.gpus)
        handoff = self._handoffs[cascade]
        parts = handoff.parts
        # This rank's parts, and their inputs: from another rank, or from the sample itself.
        part_indices = share(len(parts), degree, run.gpus.index(self._rank))
        with self._clock.part("sync"):
            inputs = [
                self._expected.pop(transfer).wait(self._device)[0]
                if transfer.message
                else self._work.source(cascade)[transfer.part_index].to(self._device)
                for transfer in self._inputs.get(cascade, [])
                if transfer.part_index in part_indices
            ]
        began = moment(self._device)
        with self._clock.part("vae" if cascade.module == Module.VAE else "text"):
            outputs = self._work.make(cascade, part_indices, inputs) if part_indices else []
        del inputs
        # All parts go where they are taken: kept here, sent on, or both.
        if degree > 1:
            with self._clock.part("sync"):
                outputs = self._gather_parts(handoff, outputs, run)
        if self._rank in handoff.takers:
            self._kept[cascade] = outputs
        if handoff.message and handoff.message.source == self._rank:
            self._send(handoff, outputs)
        return began

    def _gather_parts(
        self, handoff: Handoff, local_outputs: Sequence[torch.Tensor], run: Run
    ) -> list[torch.Tensor]:
        """Gather all parts of a cascade on all ranks of its group."""
        group, degree = self._pool.group(run.gpus), len(run.gpus)
        outputs: dict[int, torch.Tensor] = {}
        for index in range(min(degree, len(handoff.parts))):
            part_indices = share(len(handoff.parts), degree, index)
            parts = [handoff.parts[part_index] for part_index in part_indices]
            is_source = run.gpus[index] == self._rank
            message = pack_tensors(local_outputs) if is_source else empty(parts, self._device)
            dist.broadcast(message, group=group, group_src=index)
            outputs.update(
                zip(part_indices, local_outputs if is_source else unpack_tensors(message, parts), strict=True)
            )
        return [outputs[part_index] for part_index in range(len(handoff.parts))]

    def _train(self, run: Run) -> Moment:
        """Run a DiT cascade and return its begin."""
        with self._clock.part("sync"):
            module_outputs = {
                module: self._take_output(handoff)
                for module in (Module.TEXT, Module.VAE)
                if (handoff := self._handoffs.get(Cascade(run.cascade.sample, module)))
            }
        began = moment(self._device)
        context = self._pool.context(run.gpus)
        self._work.train(run.cascade.sample, module_outputs, context, run.gpus[0] == self._rank)
        return began

    def _take_output(self, handoff: Handoff) -> list[torch.Tensor]:
        """Return the output of a module on this rank of the DiT."""
        tensors = None
        if self._rank in handoff.givers:
            tensors = self._kept.pop(handoff.cascade, None)
            if handoff.stored:
                tensors = [tensor.to(self._device) for tensor in self._work.source(handoff.cascade)]
        elif self._rank == handoff.first:
            tensors = self._expected.pop(handoff).wait(self._device)
        if handoff.broadcasts:
            message = empty(handoff.parts, self._device) if tensors is None else pack_tensors(tensors)
            first = handoff.takers.index(handoff.first)
            dist.broadcast(message, group=self._pool.group(handoff.takers), group_src=first)
            tensors = unpack_tensors(message, handoff.parts) if tensors is None else tensors
        assert tensors is not None
        return tensors
