"""Frozen linear layers whose weights are held in 8 or 4 bits, and are rounded to: LoRA on a base that fits.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023. Products are computed with the weights as they
are read back, in the dtype of the activations. Backward passes read them back again, so that they are kept nowhere.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

Narrow = Literal["float8", "nf4"]

_FLOAT8_MAX = 448.0
_NF4_BLOCK = 64
# QLoRA, appendix E: quantiles of a standard normal distribution, scaled to [-1, 1], with an exact 0.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class NarrowLinear(nn.Linear):
    """Linear layer with a frozen weight in 8 or 4 bits; made from an `nn.Linear` by `narrow_`.

    float8: e4m3, with a float32 scale for each row. nf4: two values a byte, in the order of memory, with a bfloat16
    scale for each 64 values.

    Attributes:
        kind: type of the weight.
        codes: the weight in units of its scales; uint8 [ceil(out * in / 64) * 32], or float8 [out, in].
        scales: bfloat16 [ceil(out * in / 64)], or float32 [out, 1].
    """

    kind: Narrow
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight as it is read back, float32 [out, in]."""
        return _read_back(self.codes, self.scales, self.kind, self._size, torch.float32)

    @torch.no_grad()
    def hold_(self, weight_OI: torch.Tensor) -> None:
        """Round a weight, and hold it in place of the one before."""
        codes, scales = _round(weight_OI.to(self.codes.device), self.kind)
        self.codes.copy_(codes)
        self.scales.copy_(scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, [..., out], in the dtype of autocast, or of x without it."""
        device = x.device.type
        # The meta device knows no autocast.
        if not x.is_meta and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        product: torch.Tensor = _Product.apply(x, self.codes, self.scales, bias, self.kind, self._size)
        return product

    @property
    def _size(self) -> tuple[int, int]:
        return self.out_features, self.in_features


class _Product(torch.autograd.Function):
    """Product with a weight that is read back in both passes; the weight and the bias have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        kind: Narrow,
        size: tuple[int, int],
    ) -> torch.Tensor:
        ctx.save_for_backward(codes, scales)
        ctx.kind, ctx.size = kind, size
        return F.linear(x, _read_back(codes, scales, kind, size, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        codes, scales = ctx.saved_tensors
        weight_OI = _read_back(codes, scales, ctx.kind, ctx.size, gradient.dtype)
        return gradient @ weight_OI, None, None, None, None, None


def narrow_(layers: Iterable[nn.Linear], kind: Narrow) -> list[NarrowLinear]:
    """Hold the weights of layers in 8 or 4 bits, in place, and return the layers.

    Args:
        layers: frozen layers, on any device; on the meta device they have no values yet, and `NarrowLinear.hold_` gives
            them theirs.
        kind: type of the weights.
    """
    narrowed = []
    for layer in layers:
        weight_OI = layer.weight.detach()
        codes, scales = _round(weight_OI, kind)
        del layer._parameters["weight"]
        layer.register_buffer("codes", codes, persistent=False)
        layer.register_buffer("scales", scales, persistent=False)
        layer.__class__ = NarrowLinear
        assert isinstance(layer, NarrowLinear)
        layer.kind = kind
        narrowed.append(layer)
    return narrowed


def narrow_layers(model: nn.Module) -> dict[str, NarrowLinear]:
    """Return the layers of a model by the name of the weight that each had."""
    return {
        f"{name}.weight": layer for name, layer in model.named_modules() if isinstance(layer, NarrowLinear)
    }


def held_bytes(sizes: Iterable[tuple[int, int]], kind: Narrow) -> int:
    """Return the bytes of codes and scales of weights of these sizes, [out, in] each."""
    if kind == "float8":
        return sum(out * (inner + 4) for out, inner in sizes)
    return sum(math.ceil(out * inner / _NF4_BLOCK) * (_NF4_BLOCK // 2 + 2) for out, inner in sizes)


def narrow_note(layers: Sequence[nn.Linear], kind: Narrow) -> str:
    """Return a line about what layers take before and after `narrow_`."""
    before = sum(layer.weight.nbytes for layer in layers)
    after = held_bytes(((layer.out_features, layer.in_features) for layer in layers), kind)
    return (
        f"lora.base_dtype={kind}: {len(layers):,} frozen layers take {after / 2**30:.2f} GiB instead of"
        f" {before / 2**30:.2f}; adapters are trained on their rounded weights"
    )


def _round(weight_OI: torch.Tensor, kind: Narrow) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of a weight."""
    if kind == "float8":
        scales = weight_OI.abs().amax(dim=1, keepdim=True).float().clamp(min=torch.finfo(torch.float32).tiny)
        scales = scales / _FLOAT8_MAX
        return (weight_OI.float() / scales).clamp(-_FLOAT8_MAX, _FLOAT8_MAX).to(torch.float8_e4m3fn), scales
    values = weight_OI.float().flatten()
    values = F.pad(values, (0, -values.numel() % _NF4_BLOCK)).view(-1, _NF4_BLOCK)
    scales = values.abs().amax(dim=1).to(torch.bfloat16)
    units = values / scales.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    table = torch.tensor(_NF4, device=values.device)
    nearest = torch.bucketize(units, (table[1:] + table[:-1]) / 2).to(torch.uint8).view(-1, 2)
    return nearest[:, 0] * 16 + nearest[:, 1], scales


def _read_back(
    codes: torch.Tensor, scales: torch.Tensor, kind: Narrow, size: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Return the weight, [out, in]: the product of codes and scales in float32, rounded to a dtype."""
    if kind == "float8":
        return (codes.float() * scales).to(dtype)
    table = torch.tensor(_NF4, device=codes.device)
    pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=1)  # of the 256 bytes
    values = F.embedding(codes.int(), pairs).view(-1, _NF4_BLOCK) * scales.float()[:, None]
    return values.flatten()[: math.prod(size)].view(size).to(dtype)
