"""A stage of a pipeline: a transformer that holds some of its blocks and passes tokens on.

What conditions the blocks (times, and text where they only attend to it) every stage embeds for itself, which costs
less than to send it (Patel et al. 2025, section 4.4, figure 6). Losses and backward are written as for a whole model:
tokens are received where they would be embedded and sent where they would be read, and gradients go the other way when
autograd comes there.
"""

from typing import Any

import torch

from loader.errors import UsageError
from train.models.denoiser import Denoiser
from train.models.dit import DiT
from train.parallel.neighbours import Neighbours


def places(stage: int, stages: int, blocks: int) -> range:
    """The blocks of a stage. Where they do not divide, the first stage, which keeps most activations, has fewest."""
    return range(blocks * stage // stages, blocks * (stage + 1) // stages)


def check_stages(model: Denoiser, stages: int) -> DiT:
    """The model, if it divides into so many stages.

    Raises:
        UsageError: it does not.
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
    """Leaves a model the blocks of this stage, between the stages before and behind it."""
    model.keep(places(neighbours.stage, neighbours.stages, model.config.layers))
    ends = _Ends(model, neighbours)
    if not neighbours.first:
        model.enter = ends.enter  # type: ignore[method-assign]
    if not neighbours.last:
        model.leave = ends.leave  # type: ignore[method-assign, assignment]


class _Ends:
    """What a stage does instead of embedding tokens and reading them."""

    def __init__(self, model: DiT, neighbours: Neighbours) -> None:
        self._model = model
        self._neighbours = neighbours

    def enter(self, values_BLV: torch.Tensor, context_BMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BLD = self._like(values_BLV)
        if self._model.changes_text:
            x_BLD, text_BMD = self._take(x_BLD, self._like(context_BMD))
            return x_BLD, text_BMD
        [x_BLD] = self._take(x_BLD)
        return x_BLD, self._model.embed_text(context_BMD)

    def leave(self, streams: tuple[torch.Tensor, torch.Tensor], *_: object) -> torch.Tensor:
        """See `DiT`; zeros, whose gradient is that of what was sent, whatever is made of them."""
        sent = streams if self._model.changes_text else streams[:1]
        out_BLV: torch.Tensor = _Leave.apply(self._neighbours, _wanted(), self._model.patch_values, *sent)
        return out_BLV

    def _like(self, x_BLK: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape and type of the tokens that these become, without memory."""
        device = x_BLK.device.type
        half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if half else x_BLK.dtype
        return x_BLK.new_empty((), dtype=dtype).expand(*x_BLK.shape[:2], self._model.config.hidden)

    def _take(self, *like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        taken: tuple[torch.Tensor, ...] = _Enter.apply(self._neighbours, _wanted(), *like)
        return taken


def _wanted() -> torch.Tensor:
    """Autograd comes to an operation only if something that went in wants a gradient."""
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
