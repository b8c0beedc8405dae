"""The operators as Triton kernels, one for the forward and one for the backward; a flag adds the gated residual.

A program holds whole rows of D in registers. Names of pointers end in the shapes they point to: N tokens, R rows of
a modulation, P parts of a row's tokens, S sums.
"""

# What a kernel takes has no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    x_ND, y_ND, gate_RD, scale_RD, shift_RD, weight_D, bias_D, owner_N, h_ND, out_ND, mean_N, rstd_N,
    width, span, gate_stride, scale_stride, shift_stride, eps,
    GATED: tl.constexpr, PACKED: tl.constexpr, RMS: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(owner_N + token).to(tl.int64) if PACKED else token // span
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    at = token * width + columns
    x = tl.load(x_ND + at, inside, 0.0).to(tl.float32)
    if GATED:
        gate = tl.load(gate_RD + row * gate_stride + columns, inside, 0.0).to(tl.float32)
        x += gate * tl.load(y_ND + at, inside, 0.0).to(tl.float32)
        h = x.to(h_ND.dtype.element_ty)
        tl.store(h_ND + at, h, inside)
        x = h.to(tl.float32)
    if RMS:
        mean = 0.0
    else:
        mean = tl.sum(x, 0) / width
        tl.store(mean_N + token, mean)
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    tl.store(rstd_N + token, rstd)
    n = centred * rstd
    if WEIGHT:
        n *= tl.load(weight_D + columns, inside, 0.0).to(tl.float32)
    if BIAS:
        n += tl.load(bias_D + columns, inside, 0.0).to(tl.float32)
    scale = tl.load(scale_RD + row * scale_stride + columns, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_RD + row * shift_stride + columns, inside, 0.0).to(tl.float32)
    out = n * (1.0 + scale) + shift
    tl.store(out_ND + at, out.to(out_ND.dtype.element_ty), inside)


@triton.jit
def backward_kernel(
    dh_ND, dout_ND, h_ND, y_ND, mean_N, rstd_N, gate_RD, scale_RD, weight_D, ends, dx_ND, dy_ND, sums_RPSD,
    width, span, gate_stride, scale_stride,
    GATED: tl.constexpr, DH: tl.constexpr, PACKED: tl.constexpr, RMS: tl.constexpr, WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of the tokens of one row of the modulation."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    if PACKED:
        first = tl.load(ends + row).to(tl.int64)
        last = tl.load(ends + row + 1).to(tl.int64)
    else:
        first = row * span
        last = first + span
    each = (last - first + parts - 1) // parts
    first += part * each
    last = tl.minimum(last, first + each)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    one_plus = 1.0 + tl.load(scale_RD + row * scale_stride + columns, inside, 0.0).to(tl.float32)
    if WEIGHT:
        one_plus *= tl.load(weight_D + columns, inside, 0.0).to(tl.float32)
    sum_dout = tl.zeros([BLOCK], tl.float32)
    sum_dout_xhat = tl.zeros([BLOCK], tl.float32)
    if GATED:
        gate = tl.load(gate_RD + row * gate_stride + columns, inside, 0.0).to(tl.float32)
        sum_dh_y = tl.zeros([BLOCK], tl.float32)
    for token in range(first, last):
        at = token * width + columns
        dout = tl.load(dout_ND + at, inside, 0.0).to(tl.float32)
        h = tl.load(h_ND + at, inside, 0.0).to(tl.float32)
        rstd = tl.load(rstd_N + token)
        mean = 0.0 if RMS else tl.load(mean_N + token)
        xhat = tl.where(inside, (h - mean) * rstd, 0.0)
        sum_dout += dout
        sum_dout_xhat += dout * xhat
        w = dout * one_plus
        dx = w - xhat * (tl.sum(w * xhat, 0) / width)
        if not RMS:
            dx -= tl.sum(w, 0) / width
        dx *= rstd
        if DH:
            dx += tl.load(dh_ND + at, inside, 0.0).to(tl.float32)
        tl.store(dx_ND + at, dx.to(dx_ND.dtype.element_ty), inside)
        if GATED:
            tl.store(dy_ND + at, (gate * dx).to(dy_ND.dtype.element_ty), inside)
            sum_dh_y += dx * tl.load(y_ND + at, inside, 0.0).to(tl.float32)
    sums = sums_RPSD + (row * parts + part) * (3 if GATED else 2) * width + columns
    tl.store(sums, sum_dout, inside)
    tl.store(sums + width, sum_dout_xhat, inside)
    if GATED:
        tl.store(sums + 2 * width, sum_dh_y, inside)
