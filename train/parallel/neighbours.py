"""Messages between the stages of a pipeline that follow each other."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Neighbours:
    """The stages before and behind this one.

    Tokens and gradients go in groups of their own: what goes one way never waits for what goes the other, and a stage
    need not meet its neighbour to send. What goes one way arrives in the order in which it was sent.

    Args:
        tokens: all stages, for what goes to the next.
        gradients: all stages, for what goes back.

    Attributes:
        stage: this one's number, from 0.
        stages: how many there are.
    """

    def __init__(self, tokens: dist.ProcessGroup, gradients: dist.ProcessGroup) -> None:
        self._tokens, self._gradients = tokens, gradients
        self.stage, self.stages = dist.get_rank(tokens), dist.get_world_size(tokens)
        self._on_their_way: list[tuple[dist.Work, torch.Tensor]] = []

    @property
    def first(self) -> bool:
        """Whether no stage comes before this one."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether no stage comes behind this one."""
        return self.stage == self.stages - 1

    def send_on(self, streams: Sequence[torch.Tensor]) -> None:
        """Starts to send tokens to the next stage; a tensor must not change before `settle`."""
        self._send(streams, self._tokens, self.stage + 1)

    def send_back(self, gradients: Sequence[torch.Tensor]) -> None:
        """Starts to send the gradients of tokens to the stage that they came from, as `send_on`."""
        self._send(gradients, self._gradients, self.stage - 1)

    def take(self, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tokens that the stage before sent; of other tensors' shapes, types and device."""
        return self._receive(like, self._tokens, self.stage - 1)

    def take_back(self, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The gradients that the next stage sent, as `take`."""
        return self._receive(like, self._gradients, self.stage + 1)

    def settle(self) -> None:
        """Waits until all that was sent has gone."""
        for work, _ in self._on_their_way:
            work.wait()
        self._on_their_way.clear()

    def _send(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, stage: int) -> None:
        # A tensor that is being sent keeps its memory; what has gone by now gives it back.
        self._on_their_way = [sent for sent in self._on_their_way if not sent[0].is_completed()]
        for tensor in tensors:
            content = tensor.detach().contiguous()
            work = dist.isend(content, group=group, group_dst=stage)
            assert work is not None, "this rank is in the group"
            self._on_their_way.append((work, content))

    @staticmethod
    def _receive(
        like: Sequence[torch.Tensor], group: dist.ProcessGroup, stage: int
    ) -> tuple[torch.Tensor, ...]:
        received = tuple(torch.empty_like(one, memory_format=torch.contiguous_format) for one in like)
        works = [dist.irecv(one, group=group, group_src=stage) for one in received]
        for work in works:
            assert work is not None, "this rank is in the group"
            work.wait()
        return received
