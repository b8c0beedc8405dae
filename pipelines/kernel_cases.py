"""The operators of `train.kernels` as the benchmark runs them: inputs, one pass of a provider, PyTorch's own chains.

The chains are what people write without fused operators: ``bf16`` in the type of the activations, ``fp32`` as Wan's
block does (norm and modulation in float32, then the type of the activations again).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch.nn import functional as F

from train.kernels import gate_norm_modulate, norm_modulate
from train.kernels.providers import Kernels
from train.kernels.traffic import Size

EPS = 1e-6
Form = Literal["sample", "frame", "token", "packed"]
Outputs = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One size of one operator.

    Attributes:
        batch: samples; of ``packed``, 1.
        tokens: of each sample, L.
        width: D.
        form: what shares a row of the modulation.
        rows: rows of the modulation for each sample: frames, groups, or L.
        dtype: of the activations; the modulation is float32.
    """

    batch: int
    tokens: int
    width: int
    form: Form = "sample"
    rows: int = 1
    dtype: torch.dtype = torch.bfloat16

    @property
    def elements(self) -> int:
        """N x D."""
        return self.batch * self.tokens * self.width

    @property
    def size(self) -> Size:
        """What the operators' byte counts take."""
        return Size(self.batch * self.tokens, self.width, self.dtype, self.batch * self.rows, torch.float32)

    @property
    def name(self) -> str:
        """As tables show it."""
        shared = {"sample": "", "token": ", per token"}.get(self.form, f", {self.rows} {self.form} rows")
        dtype = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[self.dtype]
        return f"{self.batch} x {self.tokens} x {self.width} {dtype}{shared}"

    def activation(self, device: torch.device) -> torch.Tensor:
        """Random tokens, [B, L, D]."""
        return torch.randn(self.batch, self.tokens, self.width, device=device, dtype=self.dtype)

    def modulation(self, parts: int, device: torch.device) -> list[torch.Tensor]:
        """Rows as a model's layer gives them, views of one tensor; and the groups' ends where there are groups."""
        shape = {
            "sample": (self.batch,),
            "frame": (self.batch, self.rows),
            "token": (self.batch, self.tokens),
            "packed": (self.rows,),
        }[self.form]
        rows = torch.randn(*shape, parts * self.width, device=device) / 4
        return list(rows.chunk(parts, dim=-1))

    def cu_seqlens(self, device: torch.device) -> torch.Tensor | None:
        """Ragged groups that fill the pack; None unless the form is ``packed``."""
        if self.form != "packed":
            return None
        draw = torch.Generator().manual_seed(0)
        ends = torch.randint(1, self.tokens, (self.rows - 1,), generator=draw).sort().values
        return torch.cat([torch.tensor([0]), ends, torch.tensor([self.tokens])]).to(device, torch.int32)

    def over_tokens(self, rows: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
        """The modulation as the chains take it: by broadcasting where that is possible."""
        if cu_seqlens is not None:
            return rows.repeat_interleave(cu_seqlens.diff(), dim=0, output_size=self.tokens)[None]
        if self.form == "frame":
            return rows.repeat_interleave(self.tokens // self.rows, dim=1, output_size=self.tokens)
        return rows if self.form == "token" else rows[:, None]


class Operator(Protocol):
    """One operator with one set of buffers.

    Attributes:
        name: of the operator.
        outputs: how many of its outputs are tokens; the first.
        inputs: that have gradients.
    """

    name: str
    outputs: int
    inputs: list[torch.Tensor]

    def forward(self, kernels: Kernels) -> Outputs:
        """What a provider gives."""

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """The gradients of a provider, from what its forward gave."""

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """The same by PyTorch's own operations, ``wide`` in float32; differentiable."""

    def moved(self, backward: bool) -> int:
        """Bytes that one pass over memory moves."""


class NormModulate:
    """``layer_norm_modulate``."""

    name = "layer_norm_modulate"
    outputs = 1

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.inputs = [case.activation(device), *case.modulation(2, device)]
        self.cu_seqlens = case.cu_seqlens(device)

    def forward(self, kernels: Kernels) -> Outputs:
        """Out, mean, rstd."""
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.norm_modulate(*self.inputs, *how))

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """As `Operator.backward`."""
        x, scale, _ = self.inputs
        _, mean, rstd = outputs
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.norm_modulate_backward(upstream[0], x, mean, rstd, scale, *how))

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """As `Operator.chain`."""
        x, *rows = inputs
        scale, shift = (self.case.over_tokens(row, self.cu_seqlens) for row in rows)
        return [_norm_modulate(x, scale, shift, wide)]

    def moved(self, backward: bool) -> int:
        """As `Operator.moved`."""
        return norm_modulate.bytes_moved(self.case.size, backward)


class GateNormModulate:
    """``gate_residual_norm_modulate``."""

    name = "gate_residual_norm_modulate"
    outputs = 2

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.inputs = [case.activation(device), case.activation(device), *case.modulation(3, device)]
        self.cu_seqlens = case.cu_seqlens(device)

    def forward(self, kernels: Kernels) -> Outputs:
        """H, out, mean, rstd."""
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.gate_norm_modulate(*self.inputs, *how))

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """As `Operator.backward`."""
        _, y, gate, scale, _ = self.inputs
        h, _, mean, rstd = outputs
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.gate_norm_modulate_backward(*upstream, h, y, mean, rstd, gate, scale, *how))

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """As `Operator.chain`."""
        residual, y, *rows = inputs
        gate, scale, shift = (self.case.over_tokens(row, self.cu_seqlens) for row in rows)
        h = (residual.float() + gate * y.float()).to(y.dtype) if wide else residual + gate.to(y.dtype) * y
        return [h, _norm_modulate(h, scale, shift, wide)]

    def moved(self, backward: bool) -> int:
        """As `Operator.moved`."""
        return gate_norm_modulate.bytes_moved(self.case.size, backward)


def _norm_modulate(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, wide: bool) -> torch.Tensor:
    if wide:
        return (F.layer_norm(x.float(), x.shape[-1:], eps=EPS) * (1 + scale) + shift).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale.to(x.dtype)) + shift.to(x.dtype)
