"""Operators of `reelweave.train.kernels` in the benchmark: inputs, one pass of a provider, PyTorch's own chains.

The chains are common code without fused operators. ``bf16`` computes in the type of the activations. ``fp32`` computes
norm and modulation in float32 and then casts back, as Wan's block does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch.nn import functional as F

from reelweave.train.kernels.gate_norm_modulate import operator as gate_norm_modulate
from reelweave.train.kernels.kernel_set import Kernels
from reelweave.train.kernels.norm_modulate import operator as norm_modulate
from reelweave.train.kernels.qk_norm import operator as qk_norm
from reelweave.train.kernels.qk_norm.rotary import rotate
from reelweave.train.kernels.shared.traffic import PairSize, Size

EPS = 1e-6
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
Form = Literal["sample", "frame", "token", "packed"]
Outputs = Sequence[torch.Tensor]


class Sized(Protocol):
    """Size of a case for tables and aims."""

    @property
    def name(self) -> str:
        """Name of the operator in tables."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the activations."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tokens N, columns D, and rows of the modulation."""


@dataclass(frozen=True)
class KernelCase:
    """Tokens and their modulation.

    Attributes:
        batch: samples; of ``packed``, 1.
        tokens: tokens per sample, L.
        width: D.
        form: tokens that share a row of the modulation.
        rows: rows of the modulation for each sample: frames, groups, or L.
        dtype: type of the activations; the modulation is float32.
    """

    batch: int
    tokens: int
    width: int
    form: Form = "sample"
    rows: int = 1
    dtype: torch.dtype = torch.bfloat16

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch * self.tokens, self.width, self.batch * self.rows

    @property
    def size(self) -> Size:
        """Argument of the operators' byte counts."""
        tokens, width, rows = self.shape
        return Size(tokens, width, self.dtype, rows, torch.float32)

    @property
    def name(self) -> str:
        shared = {"sample": "", "token": ", per token"}.get(self.form, f", {self.rows} {self.form} rows")
        return f"{self.batch} x {self.tokens} x {self.width} {NAMES[self.dtype]}{shared}"

    def activation(self, device: torch.device) -> torch.Tensor:
        """Draw random tokens, [B, L, D]."""
        return torch.randn(self.batch, self.tokens, self.width, device=device, dtype=self.dtype)

    def modulation(self, parts: int, device: torch.device) -> list[torch.Tensor]:
        """Return modulation rows as views of one tensor, as a layer gives them, and the ends of groups, if any."""
        shape = {
            "sample": (self.batch,),
            "frame": (self.batch, self.rows),
            "token": (self.batch, self.tokens),
            "packed": (self.rows,),
        }[self.form]
        rows = torch.randn(*shape, parts * self.width, device=device) / 4
        return list(rows.chunk(parts, dim=-1))

    def cu_seqlens(self, device: torch.device) -> torch.Tensor | None:
        """Return ends of ragged groups that fill the pack; None unless the form is ``packed``."""
        if self.form != "packed":
            return None
        draw = torch.Generator().manual_seed(0)
        ends = torch.randint(1, self.tokens, (self.rows - 1,), generator=draw).sort().values
        return torch.cat([torch.tensor([0]), ends, torch.tensor([self.tokens])]).to(device, torch.int32)

    def over_tokens(self, rows: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
        """Return the modulation for the chains: broadcast where possible."""
        if cu_seqlens is not None:
            return rows.repeat_interleave(cu_seqlens.diff(), dim=0, output_size=self.tokens)[None]
        if self.form == "frame":
            return rows.repeat_interleave(self.tokens // self.rows, dim=1, output_size=self.tokens)
        return rows if self.form == "token" else rows[:, None]


@dataclass(frozen=True)
class Pair:
    """Queries and keys of one length, as thirds of a packed qkv.

    Attributes:
        tokens: tokens of the single sample, L.
        heads: H.
        head_width: d.
        across_heads: the heads of a token are normed together.
        rotated: true if rotary embeddings are applied.
        dtype: type of the activations.
    """

    tokens: int
    heads: int
    head_width: int = 128
    across_heads: bool = False
    rotated: bool = True
    dtype: torch.dtype = torch.bfloat16

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.tokens, self.heads * self.head_width, 1

    @property
    def size(self) -> PairSize:
        """Argument of the operator's byte counts."""
        tokens, heads = (self.tokens,) * 2, (self.heads,) * 2
        angles = self.tokens if self.rotated else 0
        return PairSize(*tokens, *heads, self.head_width, self.dtype, self.across_heads, angles)

    @property
    def name(self) -> str:
        kind = "across heads" if self.across_heads else "per head"
        rope = ", rotated" if self.rotated else ""
        return f"{self.tokens} x {self.heads} x {self.head_width} {NAMES[self.dtype]}, {kind}{rope}"


class Operator(Protocol):
    """One operator with one set of buffers.

    Attributes:
        name: name of the operator.
        outputs: number of leading outputs that are tokens.
        inputs: inputs with gradients.
    """

    name: str
    outputs: int
    inputs: list[torch.Tensor]

    @property
    def case(self) -> Sized:
        """Dimensions of the case in tables."""

    def forward(self, kernels: Kernels) -> Outputs:
        """Return a provider's outputs."""

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """Return a provider's gradients from the outputs of its forward."""

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """Return the outputs by PyTorch's own differentiable operations, ``wide`` in float32."""

    def moved_bytes(self, backward: bool) -> int:
        """Return the bytes that one pass over memory moves."""


class NormModulate:
    """``layer_norm_modulate``."""

    name = "layer_norm_modulate"
    outputs = 1

    def __init__(self, case: KernelCase, device: torch.device) -> None:
        self.case: KernelCase = case
        self.inputs = [case.activation(device), *case.modulation(2, device)]
        self.cu_seqlens = case.cu_seqlens(device)

    def forward(self, kernels: Kernels) -> Outputs:
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.norm_modulate(*self.inputs, *how))

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """Return gradients, see `Operator.backward`."""
        x, scale, _ = self.inputs
        _, mean, rstd = outputs
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.norm_modulate_backward(upstream[0], x, mean, rstd, scale, *how))

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """Return outputs, see `Operator.chain`."""
        x, *rows = inputs
        scale, shift = (self.case.over_tokens(row, self.cu_seqlens) for row in rows)
        return [_norm_modulate(x, scale, shift, wide)]

    def moved_bytes(self, backward: bool) -> int:
        """Return bytes, see `Operator.moved_bytes`."""
        return norm_modulate.bytes_moved(self.case.size, backward)


class GateNormModulate:
    """``gate_residual_norm_modulate``."""

    name = "gate_residual_norm_modulate"
    outputs = 2

    def __init__(self, case: KernelCase, device: torch.device) -> None:
        self.case: KernelCase = case
        self.inputs = [case.activation(device), case.activation(device), *case.modulation(3, device)]
        self.cu_seqlens = case.cu_seqlens(device)

    def forward(self, kernels: Kernels) -> Outputs:
        """Return h, out, mean, rstd."""
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.gate_norm_modulate(*self.inputs, *how))

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """Return gradients, see `Operator.backward`."""
        _, y, gate, scale, _ = self.inputs
        h, _, mean, rstd = outputs
        how = (None, None, self.cu_seqlens, EPS, False, "fp32")
        return list(kernels.gate_norm_modulate_backward(*upstream, h, y, mean, rstd, gate, scale, *how))

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """Return outputs, see `Operator.chain`."""
        residual, y, *rows = inputs
        gate, scale, shift = (self.case.over_tokens(row, self.cu_seqlens) for row in rows)
        h = (residual.float() + gate * y.float()).to(y.dtype) if wide else residual + gate.to(y.dtype) * y
        return [h, _norm_modulate(h, scale, shift, wide)]

    def moved_bytes(self, backward: bool) -> int:
        """Return bytes, see `Operator.moved_bytes`."""
        return gate_norm_modulate.bytes_moved(self.case.size, backward)


class QkNorm:
    """Case of ``qk_norm``: queries or keys of one attention."""

    name = "qk_norm"
    outputs = 2

    def __init__(self, case: Pair, device: torch.device) -> None:
        self.case: Pair = case
        qkv = torch.randn(1, case.tokens, 3, case.heads, case.head_width, device=device, dtype=case.dtype)
        width = case.heads * case.head_width if case.across_heads else case.head_width
        self.inputs = [*qkv.unbind(2)[:2], *(1 + torch.randn(2, width, device=device) / 4).unbind()]
        angles = torch.rand(2, case.tokens, case.head_width // 2, device=device)
        self.rotation = (angles[0].cos(), angles[1].sin()) if case.rotated else (None, None)

    def forward(self, kernels: Kernels) -> Outputs:
        """Return q, k and their statistics."""
        how = (*self.rotation, EPS, self.case.across_heads, False, "fp32")
        return list(kernels.qk_norm(*self.inputs, *how))

    def backward(self, kernels: Kernels, outputs: Outputs, upstream: Outputs) -> Outputs:
        """Return gradients, see `Operator.backward`."""
        q, k, *weights = self.inputs
        how = (*weights, *self.rotation, EPS, self.case.across_heads, False, "fp32")
        return list(kernels.qk_norm_backward(*upstream, q, k, *outputs[2:], *how))

    def chain(self, inputs: Sequence[torch.Tensor], wide: bool = False) -> Outputs:
        """Return outputs, see `Operator.chain`."""
        return [self._half(x, weight, wide) for x, weight in zip(inputs[:2], inputs[2:], strict=True)]

    def moved_bytes(self, backward: bool) -> int:
        """Return bytes, see `Operator.moved_bytes`."""
        return qk_norm.bytes_moved(self.case.size, backward)

    def _half(self, x_BLHd: torch.Tensor, weight: torch.Tensor, wide: bool) -> torch.Tensor:
        x = x_BLHd.flatten(2) if self.case.across_heads else x_BLHd
        x = x.float() if wide else x
        n_BLHd = F.rms_norm(x, x.shape[-1:], weight, EPS).view(x_BLHd.shape)
        cos, sin = self.rotation
        if cos is not None and sin is not None:
            n_BLHd = rotate(n_BLHd, cos[:, None].to(n_BLHd.dtype), sin[:, None].to(n_BLHd.dtype))
        return n_BLHd.to(x_BLHd.dtype)


def _norm_modulate(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, wide: bool) -> torch.Tensor:
    if wide:
        return (F.layer_norm(x.float(), x.shape[-1:], eps=EPS) * (1 + scale) + shift).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale.to(x.dtype)) + shift.to(x.dtype)
