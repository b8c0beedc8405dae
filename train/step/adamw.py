"""AdamW whose moments take 4 or 2 bytes a weight instead of 8 (`reelweave.train.step.moments`)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any

import torch

from reelweave.train.step.buckets import fill_buckets
from reelweave.train.step.moments import Moments

BUCKET_VALUES = 1 << 24
"""Weights that are updated together: bounds the memory of an update, and the kernels of many small weights."""
_MOMENTS = ("exp_avg", "exp_avg_sq")

Formats = tuple[Moments, Moments]
"""Storage of the first and the second moment."""


class CompactAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019) that keeps its moments in other types than it computes with.

    A weight is updated by its moments before they are rounded, in float32 or the type of wider weights. Steps are
    counted on the host, so that nothing is read back from a GPU.

    Args:
        groups: groups of plain weights, as `torch.optim.AdamW` takes them.
        formats: returns the storage of a weight's moments.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: number added to the root of the second moment.
        weight_decay: decay per unit of learning rate.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        formats: Callable[[torch.Tensor], Formats],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        weights = chain.from_iterable(group["params"] for group in self.param_groups)
        self._formats = {weight: formats(weight) for weight in weights}
        for weight, of_weight in self._formats.items():
            self.state[weight]["step"] = torch.zeros(())
            for name, moments in zip(_MOMENTS, of_weight, strict=True):
                stored = moments.zeros(weight)
                self.state[weight] |= {
                    _piece_name(name, index): tensor for index, tensor in enumerate(stored)
                }

    @property
    def update_bytes(self) -> int:
        """Bytes that an update takes beside weights, gradients and state, at most."""
        buckets = chain.from_iterable(_buckets(group["params"]) for group in self.param_groups)
        return _COPIES * 4 * max((sum(tensor.numel() for tensor in bucket) for bucket in buckets), default=0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss is computed here
        """Update the weights that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            trained = [weight for weight in group["params"] if weight.grad is not None]
            for weights in _buckets(trained):
                for count, alike in groupby(weights, lambda weight: int(self.state[weight]["step"])):
                    self._update_(list(alike), count + 1, group)

    def _update_(self, weights: list[torch.Tensor], step: int, group: dict[str, Any]) -> None:
        lr, (decay_1, decay_2) = group["lr"], group["betas"]
        wide = torch.promote_types(weights[0].dtype, torch.float32)
        gradients = [weight.grad.flatten() for weight in weights if weight.grad is not None]
        gradient_N = torch.cat(gradients).to(wide)
        first_N, second_N = (self._read(weights, moment).to(wide) for moment in (0, 1))
        first_N.lerp_(gradient_N, 1 - decay_1)
        second_N.mul_(decay_2).addcmul_(gradient_N, gradient_N, value=1 - decay_2)
        del gradient_N
        self._write_(weights, 0, first_N, step)
        self._write_(weights, 1, second_N, step)
        root_N = second_N.div_(1 - decay_2**step).sqrt_().add_(group["eps"])
        changes = torch.split(first_N.div_(root_N), [weight.numel() for weight in weights])
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        shaped = [change.view_as(weight) for change, weight in zip(changes, weights, strict=True)]
        torch._foreach_add_(weights, shaped, alpha=-lr / (1 - decay_1**step))
        for weight in weights:
            self.state[weight]["step"].fill_(step)

    def _read(self, weights: Sequence[torch.Tensor], moment: int) -> torch.Tensor:
        """Return a moment of some weights in float32, one after the other."""
        return torch.cat(
            [self._formats[weight][moment].read(self._store(weight, moment)).flatten() for weight in weights]
        )

    def _write_(
        self, weights: Sequence[torch.Tensor], moment: int, values_N: torch.Tensor, step: int
    ) -> None:
        parts = torch.split(values_N.float(), [weight.numel() for weight in weights])
        salt = (2 * step + moment) * _SPREAD % 2**31
        for weight, part in zip(weights, parts, strict=True):
            self._formats[weight][moment].write_(self._store(weight, moment), part.view_as(weight), salt)

    def _store(self, weight: torch.Tensor, moment: int) -> list[torch.Tensor]:
        state = self.state[weight]
        return [
            state[key] for key in (_piece_name(_MOMENTS[moment], index) for index in (0, 1)) if key in state
        ]


_COPIES = 8  # of a bucket in float32: gradient, moments, and what rounding one of them takes
_SPREAD = 2654435761  # Knuth's multiplicative hash


def _piece_name(name: str, index: int) -> str:
    return f"{name}_scales" if index else name


def _buckets(weights: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    return fill_buckets([(weight, weight.dtype, weight.numel()) for weight in weights], BUCKET_VALUES)
