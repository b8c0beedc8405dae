"""Pipeline stage: a transformer that holds some of its blocks and passes tokens on.

Every stage embeds the blocks' conditions itself (times, and text as a cross-attention source), which is cheaper
than sending them (Patel et al. 2025, section 4.4, figure 6). Losses and backward are the code of a whole
model. Tokens are received in place of the embedding and sent in place of the head. Gradients travel back when
autograd reaches these operations.
"""

from typing import Any

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT
from reelweave.train.parallel.neighbours import Neighbours


def places(stage: int, stages: int, blocks: int) -> range:
    """Return the blocks of a stage; the first stage, which keeps most activations, gets the fewest."""
    return range(blocks * stage // stages, blocks * (stage + 1) // stages)


def check_stages(model: Denoiser, stages: int) -> DiT:
    """Return the model if it divides into this many stages.

    Raises:
        UsageError: the model does not divide into them.
    """
    if not isinstance(model, DiT):
        raise UsageError(
            f"parallel.pp={stages} cannot divide this model, only those of kind dit, st_dit and mmdit: leave it at 1,"
            " and divide with dp_shard"
        )
    if stages > model.config.layers:
        raise UsageError(
            f"parallel.pp={stages} must be at most model.layers={model.config.layers}: each stage has a block"
        )
    return model


def make_stage(model: DiT, neighbours: Neighbours) -> None:
    """Reduce a model to the blocks of this stage, connected to its neighbours."""
    model.keep(places(neighbours.stage, neighbours.stages, model.config.layers))
    ends = _Ends(model, neighbours)
    if not neighbours.first:
        model.enter = ends.enter  # type: ignore[method-assign, assignment]
    if not neighbours.last:
        model.leave = ends.leave  # type: ignore[method-assign, assignment]


class _Ends:
    """Replacements of a stage's embedding and head."""

    def __init__(self, model: DiT, neighbours: Neighbours) -> None:
        self._model = model
        self._neighbours = neighbours

    def enter(
        self, values_BLV: torch.Tensor, context_BMD: torch.Tensor, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Receive tokens, to which the first stage added their places."""
        x_BLD = self._like(values_BLV)
        if self._model.joint_text:
            x_BLD, text_BMD = self._take(x_BLD, self._like(context_BMD))
            return x_BLD, text_BMD
        [x_BLD] = self._take(x_BLD)
        return x_BLD, self._model.embed_text(context_BMD)

    def leave(self, streams: tuple[torch.Tensor, torch.Tensor], *_: object) -> torch.Tensor:
        """Send tokens on; returns zeros whose gradient is that of the sent tokens, whatever the loss computes."""
        sent = streams if self._model.joint_text else streams[:1]
        out_BLV: torch.Tensor = _Leave.apply(
            self._neighbours, _dummy_input(), self._model.patch_values, *sent
        )
        return out_BLV

    def _like(self, x_BLK: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape and dtype of embedded tokens, without memory."""
        device = x_BLK.device.type
        half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if half else x_BLK.dtype
        return x_BLK.new_empty((), dtype=dtype).expand(*x_BLK.shape[:2], self._model.config.hidden)

    def _take(self, *like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        entered: tuple[torch.Tensor, ...] = _Enter.apply(self._neighbours, _dummy_input(), *like)
        return entered


def _dummy_input() -> torch.Tensor:
    """Return an input that requires a gradient, without which autograd would skip the operation."""
    return torch.zeros((), requires_grad=True)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, neighbours: Neighbours, _wanted: torch.Tensor, *like: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.neighbours = neighbours
        return neighbours.take(like)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        ctx.neighbours.send_back(gradients)
        return (None, None, *(None for _ in gradients))


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, neighbours: Neighbours, _wanted: torch.Tensor, values: int, *streams: torch.Tensor
    ) -> torch.Tensor:
        ctx.neighbours = neighbours
        ctx.like = [stream.new_empty(()).expand(stream.shape) for stream in streams]
        neighbours.send_on(streams)
        return streams[0].new_zeros(*streams[0].shape[:2], values)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, None, None, *ctx.neighbours.take_back(ctx.like))
