"""Check of kernels on the present device: every operator, forward and backward, against float64."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch

from reelweave.train.kernels.checks import check_qk
from reelweave.train.kernels.checks.accuracy import BF16, EPS, F32, TYPES, double, units
from reelweave.train.kernels.checks.check_qk import PairCase
from reelweave.train.kernels.eager import EAGER, with_references
from reelweave.train.kernels.gate_norm_modulate import reference as gated
from reelweave.train.kernels.kernel_set import Kernels
from reelweave.train.kernels.norm_modulate import reference as plain

Form = Literal["sample", "frame", "token", "packed"]
Layout = Literal["whole", "sliced", "unaligned", "turned"]
FORMS: tuple[Form, ...] = ("sample", "frame", "token", "packed")
LAYOUTS: tuple[Layout, ...] = ("whole", "sliced", "unaligned", "turned")
SHAPES = (
    (1, 760),
    (199, 1128),
    (37, 1536),
    (1024, 3072),
    (199, 5120),
    (37, 8192),
    (9, 8200),
    (37, 16384),
    (37, 769),
)
"""Tokens per sample and columns: every register kernel class, odd widths, and widths beyond registers."""


@dataclass(frozen=True)
class Case:
    """One call of an operator and of its gradient.

    Attributes:
        gated: True for gate_residual_norm_modulate, False for layer_norm_modulate.
        form: layout of the modulation.
        length: tokens per sample.
        dim: number of columns.
        x: dtype of the tokens.
        modulation: dtype of the modulation.
        rms: True for an RMS norm.
        affine: True with a weight and a bias in the tokens' dtype.
        layout: memory layout of tokens; ``turned`` has no single stride between rows.
    """

    gated: bool
    form: Form
    length: int
    dim: int
    x: torch.dtype = BF16
    modulation: torch.dtype = F32
    rms: bool = False
    affine: bool = False
    layout: Layout = "whole"

    def __str__(self) -> str:
        name = "gate_residual_norm_modulate" if self.gated else "layer_norm_modulate"
        types = f"{self.x} by {self.modulation}".replace("torch.", "")
        flags = "".join([", rms"] * self.rms + [", affine"] * self.affine)
        return f"{name} of {self.length} x {self.dim} {types}, per {self.form}{flags}, {self.layout}"


def cases(shapes: Iterable[tuple[int, int]] = SHAPES) -> Iterator[Case]:
    """Yield both operators with every form and dtype in every shape, and other choices in rotation."""
    choices = list(product((False, True), (False, True), LAYOUTS))
    for shape_index, (length, dim) in enumerate(shapes):
        combinations = product((False, True), FORMS, TYPES)
        for turn, (is_gated, form, (x, modulation)) in enumerate(combinations, start=shape_index):
            # 7 and 16 are coprime, so that all combinations occur, in another order for each shape.
            rms, affine, layout = choices[(7 * turn + shape_index) % 16]
            yield Case(is_gated, form, length, dim, x, modulation, rms, affine, layout)


def failures(kernels: Kernels, device: torch.device, cases: Iterable[Case | PairCase]) -> Iterator[str]:
    """Yield a sentence for each case whose error exceeds rounding, or that differs between two runs."""
    for case in cases:
        with torch.no_grad():
            off = worst(kernels, device, case)
        if not off <= 1:
            yield f"{case}: off by {off:.3g} times what rounding explains"


def worst(kernels: Kernels, device: torch.device, case: Case | PairCase) -> float:
    """Return the largest error of outputs and gradients in units of the tolerance; inf if two runs differ.

    Unsupported tensors use ``eager``, as everywhere.
    """
    if isinstance(case, PairCase):
        return check_qk.worst(kernels, device, case)
    case_inputs = _make_inputs(case, device)
    kernels = with_references(kernels) if kernels.serves(case_inputs.residual, "fp32") else EAGER
    scale, shift, rest = (
        case_inputs.scale,
        case_inputs.shift,
        (case_inputs.weight, case_inputs.bias, case_inputs.cu_seqlens, EPS, case.rms, "fp32"),
    )
    compared = []
    backward: Callable[..., Any]
    reference: Callable[..., Any]
    upstream: tuple[Any, ...]
    vectors: tuple[Any, ...]
    if case.gated:
        inputs = (case_inputs.residual, case_inputs.y, case_inputs.gate, scale, shift, *rest)
        h, out, *statistics = kernels.gate_norm_modulate(*inputs)
        compared.append((h, gated.forward(*double(inputs))[0]))
        backward, reference = kernels.gate_norm_modulate_backward, gated.backward
        upstream, vectors = (
            (case_inputs.dh, case_inputs.dout, h, case_inputs.y),
            (case_inputs.gate, scale, *rest),
        )
    else:
        h = case_inputs.residual
        out, *statistics = kernels.norm_modulate(h, scale, shift, *rest)
        backward, reference = kernels.norm_modulate_backward, plain.backward
        upstream, vectors = (case_inputs.dout, h), (scale, *rest)
    # Compare what follows for the stored h, which is rounded on purpose.
    exact, *exact_statistics = plain.forward(*double((h, scale, shift, *rest)))
    compared.append((out, exact))
    grads, again = (backward(*upstream, *statistics, *vectors) for _ in range(2))
    if not all(map(torch.equal, grads, again)):
        return float("inf")
    compared += zip(grads, reference(*double(upstream), *exact_statistics, *double(vectors)), strict=True)
    return max(units(*pair) for pair in compared)


START: tuple[Case | PairCase, ...] = (
    Case(False, "sample", 199, 1536),
    Case(True, "sample", 199, 1536),
    Case(False, "packed", 37, 3072),
    Case(True, "packed", 37, 3072),
    PairCase((199, 199, 12, 12, 128), BF16, F32, across=False, turn="half"),
    PairCase((199, 199, 12, 12, 128), BF16, F32, across=True, turn="interleaved"),
)
"""The cases that training has most, of the check before first use; NVRTC compiles their kernels alone."""


@dataclass(frozen=True)
class _Inputs:
    """Input tensors of a case."""

    residual: torch.Tensor
    y: torch.Tensor
    gate: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    cu_seqlens: torch.Tensor | None
    dh: torch.Tensor | None
    dout: torch.Tensor


def _make_inputs(case: Case, device: torch.device) -> _Inputs:
    draw = torch.Generator().manual_seed(case.length * case.dim)

    def normal(*shape: int, dtype: torch.dtype = case.x) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    L, D = case.length, case.dim
    rows, cu_seqlens = _grouping(case, device)
    B = 1 if cu_seqlens is not None else rows[0]
    off = int(case.layout == "unaligned")
    gate, scale, shift = normal(*rows, 3 * D + off, dtype=case.modulation)[..., off:].chunk(3, dim=-1)
    dout = normal(B, L, D)
    if case.layout == "sliced":
        dout = normal(D).expand(B, L, D)
    elif case.layout == "turned":
        dout = normal(B, 1, 1).expand(B, L, D)
    residual, y = (_lay_out(normal(B, L, 2 * D) + 1, case.layout) for _ in range(2))
    weight, bias = (normal(D) if case.affine else None for _ in range(2))
    dh = None if case.rms else normal(B, L, D)
    return _Inputs(residual, y, gate, scale, shift, weight, bias, cu_seqlens, dh, dout)


def _grouping(case: Case, device: torch.device) -> tuple[tuple[int, ...], torch.Tensor | None]:
    """Return the modulation's shape without its width, and ragged cu_seqlens with empty groups."""
    L = case.length
    if case.form == "packed":
        ends = [0, 0, L // 3, L // 3, L // 2, L]
        dtype = torch.int64 if case.affine else torch.int32
        return (len(ends) - 1,), torch.tensor(ends, dtype=dtype, device=device)
    frames = next(count for count in (3, 37, 199, 2, 1) if L % count == 0)
    return {"sample": (2,), "frame": (2, frames), "token": (2, L)}[case.form], None


def _lay_out(tokens_BLE: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return half of the columns in a memory layout."""
    D = tokens_BLE.shape[-1] // 2
    if layout == "whole":
        return tokens_BLE[..., :D].contiguous()
    if layout == "turned":
        return tokens_BLE[..., :D].transpose(0, 1).contiguous().transpose(0, 1)
    return tokens_BLE[..., D:] if layout == "sliced" else tokens_BLE[..., 1 : D + 1]
