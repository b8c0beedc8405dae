"""Messages between adjacent pipeline stages."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Neighbours:
    """Point-to-point channels to the previous and next pipeline stages.

    Tokens and gradients use separate groups, so that neither direction waits for the other, and a stage can
    send before its neighbour receives. Each direction delivers in order.

    Args:
        tokens: group of all stages, for tokens sent to the next one.
        gradients: group of all stages, for gradients sent back.

    Attributes:
        stage: number of this stage, from 0.
        stages: number of stages.
    """

    def __init__(self, tokens: dist.ProcessGroup, gradients: dist.ProcessGroup) -> None:
        self._tokens, self._gradients = tokens, gradients
        self.stage, self.stages = dist.get_rank(tokens), dist.get_world_size(tokens)
        self._on_their_way: list[tuple[dist.Work, torch.Tensor]] = []

    @property
    def first(self) -> bool:
        """True for the first stage."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """True for the last stage."""
        return self.stage == self.stages - 1

    def send_on(self, streams: Sequence[torch.Tensor]) -> None:
        """Start sending tokens to the next stage; they must not change before `settle`."""
        self._send(streams, self._tokens, self.stage + 1)

    def send_back(self, gradients: Sequence[torch.Tensor]) -> None:
        """Start sending gradients of tokens to the previous stage, like `send_on`."""
        self._send(gradients, self._gradients, self.stage - 1)

    def take(self, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Receive tokens from the previous stage, with shapes, dtypes and device of other tensors."""
        return self._receive(like, self._tokens, self.stage - 1)

    def take_back(self, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Receive gradients from the next stage, like `take`."""
        return self._receive(like, self._gradients, self.stage + 1)

    def settle(self) -> None:
        """Wait for all pending sends."""
        for work, _ in self._on_their_way:
            work.wait()
        self._on_their_way.clear()

    def _send(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, stage: int) -> None:
        # Keep tensors alive while they are sent; drop completed ones.
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
        received = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like)
        works = [dist.irecv(tensor, group=group, group_src=stage) for tensor in received]
        for work in works:
            assert work is not None, "this rank is in the group"
            work.wait()
        return received
