"""The operators by way of Triton; imported only where Triton is.

The backward gives dx and, for each of a few parts of a modulation's tokens, sums in float32; these are added in a
fixed order afterwards, so equal inputs give equal bits.
"""

from typing import Any

import torch
import triton

from train.kernels.by_triton import qk_norm as triton_qk_norm
from train.kernels.by_triton.kernels import backward_kernel, forward_kernel
from train.kernels.by_triton.launch import PARTS, WIDEST, dense, on_device
from train.kernels.kernel_set import Kernels
from train.kernels.rows import accumulator, owner


def serves(x_BLD: torch.Tensor, numerics: str) -> bool:
    """Rows that fit into registers, on a device that runs kernels, in ``fp32`` numerics."""
    device = x_BLD.is_cuda or triton.knobs.runtime.interpret
    known = x_BLD.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return device and known and numerics == "fp32" and x_BLD.shape[-1] <= WIDEST and x_BLD.numel() > 0


def _norm_modulate(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _forward(x, None, None, *rest)[1:]


def _norm_modulate_backward(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    dx, _, *others = _backward(None, dy, x, None, mean, rstd, None, *rest)
    return dx, *others


def _forward(
    x_BLD: torch.Tensor,
    y_BLD: torch.Tensor | None,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    eps: float,
    rms: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...]:
    """H (x itself without a gate), out, mean and rstd."""
    B, L, D = x_BLD.shape
    x = x_BLD.contiguous()
    out, h = torch.empty_like(x), x if y_BLD is None else torch.empty_like(x)
    rstd_BL = x.new_empty((B, L), dtype=accumulator(x.dtype))
    mean_BL = rstd_BL.new_empty(0) if rms else torch.empty_like(rstd_BL)
    scale_RD, shift_RD = _flat(scale), _flat(shift)
    gate_RD = scale_RD if gate is None else _flat(gate)
    with on_device(x):
        forward_kernel[(B * L,)](
            x, dense(y_BLD), gate_RD, scale_RD, shift_RD, dense(weight_D), dense(bias_D),
            None if cu_seqlens is None else owner(cu_seqlens, L), h, out, mean_BL, rstd_BL,
            D, _span(x, scale_RD), gate_RD.stride(0), scale_RD.stride(0), shift_RD.stride(0), eps,
            GATED=gate is not None, PACKED=cu_seqlens is not None, RMS=rms, WEIGHT=weight_D is not None,
            BIAS=bias_D is not None, **_shape(D),
        )  # fmt: skip
    return h, out, mean_BL, rstd_BL


def _backward(
    dh_BLD: torch.Tensor | None,
    dout_BLD: torch.Tensor,
    h_BLD: torch.Tensor,
    y_BLD: torch.Tensor | None,
    mean_BL: torch.Tensor,
    rstd_BL: torch.Tensor,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    _eps: float,
    rms: bool,
    _numerics: str,
) -> tuple[torch.Tensor, ...]:
    """Gradients of x (or residual), y, gate, scale, shift, weight and bias; without a gate dx twice, and no gate's."""
    (_, L, D), gated, scale_RD = h_BLD.shape, gate is not None, _flat(scale)
    gate_RD = scale_RD if gate is None else _flat(gate)
    rows = len(scale_RD)
    parts = max(1, min(PARTS // rows, L))
    dh, dout, h, y = map(dense, (dh_BLD, dout_BLD, h_BLD, y_BLD))
    dx = torch.empty_like(h_BLD, memory_format=torch.contiguous_format)
    dy = torch.empty_like(dx) if gated else dx
    sums_RPSD = rstd_BL.new_empty((rows, parts, 3 if gated else 2, D))
    with on_device(dx):
        backward_kernel[(rows, parts)](
            dh, dout, h, y, mean_BL, rstd_BL, gate_RD, scale_RD, dense(weight_D),
            dense(cu_seqlens), dx, dy, sums_RPSD,
            D, _span(dx, scale_RD), gate_RD.stride(0), scale_RD.stride(0),
            GATED=gated, DH=dh is not None, PACKED=cu_seqlens is not None, RMS=rms,
            WEIGHT=weight_D is not None, **_shape(D),
        )  # fmt: skip
    dshift_RD, dxhat_RD, *dgate_RD = sums_RPSD.sum(dim=1).unbind(dim=1)
    dscale_RD = dxhat_RD if weight_D is None else dxhat_RD * weight_D
    dscale_RD = dscale_RD if bias_D is None else dscale_RD + dshift_RD * bias_D
    found = [t.to(scale.dtype, copy=True).reshape(scale.shape) for t in (*dgate_RD, dscale_RD, dshift_RD)]
    affine = _seen_through(scale_RD, weight_D, dxhat_RD), _seen_through(scale_RD, bias_D, dshift_RD)
    return dx, dy, *found, *affine


def _seen_through(
    scale_RD: torch.Tensor, parameter_D: torch.Tensor | None, sums_RD: torch.Tensor
) -> torch.Tensor:
    """The gradient of weight or bias: its tokens' sums times 1 + scale, which all tokens of a row share."""
    if parameter_D is None:
        return sums_RD.new_empty(0)
    return ((1 + scale_RD.float()) * sums_RD).sum(dim=0).to(parameter_D.dtype)


def _flat(rows: torch.Tensor) -> torch.Tensor:
    """[R, D]; a copy only of what no row stride describes."""
    flat_RD = rows.reshape(-1, rows.shape[-1])
    return flat_RD if flat_RD.stride(1) == 1 else flat_RD.contiguous()


def _span(x_BLD: torch.Tensor, rows_RD: torch.Tensor) -> int:
    """The tokens of each row, where they are not packed."""
    return max(1, x_BLD.shape[0] * x_BLD.shape[1] // len(rows_RD))


def _shape(width: int) -> dict[str, int]:
    block = int(triton.next_power_of_2(width))
    return {"BLOCK": block, "num_warps": min(16, max(4, block // 512))}


KERNELS = Kernels(
    serves=serves,
    norm_modulate=_norm_modulate,
    norm_modulate_backward=_norm_modulate_backward,
    gate_norm_modulate=_forward,
    gate_norm_modulate_backward=_backward,
    qk_norm=triton_qk_norm.forward,
    qk_norm_backward=triton_qk_norm.backward,
)
