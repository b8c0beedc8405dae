"""The norm of queries and keys as Triton kernels: the first programs are the queries', the others the keys'.

A program holds a token's heads in registers, as pairs of channels a and b that a rotation turns together: [H, R] each,
R pairs in a head. Names of pointers end in the shapes they point to: N tokens, S sums; C columns of a weight.
"""

# What a kernel takes has no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, SIM108

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q_NHd, k_NGd, weight_q_C, weight_k_C, cos_NR, sin_NR, q_out_NHd, k_out_NGd, rstd_q, rstd_k,
    q_rows, L, M, H, G, d, q_sample, q_token, q_head, k_sample, k_token, k_head, cos_sample, cos_token, eps,
    ACROSS: tl.constexpr, WEIGHT_Q: tl.constexpr, WEIGHT_K: tl.constexpr, ROTATED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One token of the queries or of the keys."""
    row = tl.program_id(0).to(tl.int64)
    if row < q_rows:
        _forward_row(
            row, q_NHd, weight_q_C, cos_NR, sin_NR, q_out_NHd, rstd_q, L, H, d,
            q_sample, q_token, q_head, cos_sample, cos_token, eps,
            ACROSS, WEIGHT_Q, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_R,
        )  # fmt: skip
    else:
        _forward_row(
            row - q_rows, k_NGd, weight_k_C, cos_NR, sin_NR, k_out_NGd, rstd_k, M, G, d,
            k_sample, k_token, k_head, cos_sample, cos_token, eps,
            ACROSS, WEIGHT_K, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_R,
        )  # fmt: skip


@triton.jit
def backward_kernel(
    dq_NHd, dk_NGd, q_NHd, k_NGd, rstd_q, rstd_k, weight_q_C, weight_k_C, cos_NR, sin_NR,
    dq_out_NHd, dk_out_NGd, sums_q_SC, sums_k_SC,
    q_parts, k_parts, q_rows, k_rows, L, M, H, G, d, q_sample, q_token, q_head, k_sample, k_token, k_head,
    dq_sample, dq_token, dq_head, dk_sample, dk_token, dk_head, cos_sample, cos_token,
    ACROSS: tl.constexpr, WEIGHT_Q: tl.constexpr, WEIGHT_K: tl.constexpr, ROTATED: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A part of the tokens of the queries or of the keys."""
    part = tl.program_id(0).to(tl.int64)
    if part < q_parts:
        _backward_part(
            part, q_parts, dq_NHd, q_NHd, rstd_q, weight_q_C, cos_NR, sin_NR, dq_out_NHd, sums_q_SC, q_rows, L, H, d,
            q_sample, q_token, q_head, dq_sample, dq_token, dq_head, cos_sample, cos_token,
            ACROSS, WEIGHT_Q, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_R,
        )  # fmt: skip
    else:
        _backward_part(
            part - q_parts, k_parts, dk_NGd, k_NGd, rstd_k, weight_k_C, cos_NR, sin_NR, dk_out_NGd, sums_k_SC, k_rows,
            M, G, d, k_sample, k_token, k_head, dk_sample, dk_token, dk_head, cos_sample, cos_token,
            ACROSS, WEIGHT_K, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_R,
        )  # fmt: skip


@triton.jit
def _forward_row(
    row, x_NHd, weight_C, cos_NR, sin_NR, out_NHd, rstd_NH, tokens, heads, d,
    x_sample, x_token, x_head, cos_sample, cos_token, eps,
    ACROSS: tl.constexpr, WEIGHT: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    head, at_a, at_b, in_a, in_b = _pairs(heads, d, INTERLEAVED, BLOCK_H, BLOCK_R)
    x = x_NHd + _start(row, tokens, x_sample, x_token) + head * x_head
    a, b = tl.load(x + at_a, in_a, 0.0).to(tl.float32), tl.load(x + at_b, in_b, 0.0).to(tl.float32)
    if ACROSS:
        rstd = 1.0 / tl.sqrt(tl.sum(a * a + b * b) / (heads * d) + eps)
        tl.store(rstd_NH + row, rstd)
    else:
        rstd = 1.0 / tl.sqrt(tl.sum(a * a + b * b, 1, keep_dims=True) / d + eps)
        tl.store(rstd_NH + row * heads + head, rstd, head < heads)
    a, b = a * rstd, b * rstd
    if WEIGHT:
        weight = weight_C + (head * d if ACROSS else head * 0)
        a *= tl.load(weight + at_a, in_a, 0.0).to(tl.float32)
        b *= tl.load(weight + at_b, in_b, 0.0).to(tl.float32)
    if ROTATED:
        cos, sin = _angles(row, tokens, cos_NR, sin_NR, d, cos_sample, cos_token, BLOCK_R)
        a, b = a * cos - b * sin, a * sin + b * cos
    out = out_NHd + (row * heads + head) * d
    tl.store(out + at_a, a.to(out_NHd.dtype.element_ty), in_a)
    tl.store(out + at_b, b.to(out_NHd.dtype.element_ty), in_b)


@triton.jit
def _backward_part(
    part, parts, dy_NHd, x_NHd, rstd_NH, weight_C, cos_NR, sin_NR, dx_NHd, sums_SC, rows, tokens, heads, d,
    x_sample, x_token, x_head, dy_sample, dy_token, dy_head, cos_sample, cos_token,
    ACROSS: tl.constexpr, WEIGHT: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    head, at_a, at_b, in_a, in_b = _pairs(heads, d, INTERLEAVED, BLOCK_H, BLOCK_R)
    each = (rows + parts - 1) // parts
    first = part * each
    columns = head * d if ACROSS else head * 0
    if WEIGHT:
        weight_a = tl.load(weight_C + columns + at_a, in_a, 0.0).to(tl.float32)
        weight_b = tl.load(weight_C + columns + at_b, in_b, 0.0).to(tl.float32)
    sum_a, sum_b = tl.zeros([BLOCK_H, BLOCK_R], tl.float32), tl.zeros([BLOCK_H, BLOCK_R], tl.float32)
    for row in range(first, tl.minimum(rows, first + each)):
        dy = dy_NHd + _start(row, tokens, dy_sample, dy_token) + head * dy_head
        x = x_NHd + _start(row, tokens, x_sample, x_token) + head * x_head
        a, b = tl.load(dy + at_a, in_a, 0.0).to(tl.float32), tl.load(dy + at_b, in_b, 0.0).to(tl.float32)
        if ROTATED:
            cos, sin = _angles(row, tokens, cos_NR, sin_NR, d, cos_sample, cos_token, BLOCK_R)
            a, b = a * cos + b * sin, b * cos - a * sin
        rstd = tl.load(rstd_NH + row) if ACROSS else tl.load(rstd_NH + row * heads + head, head < heads, 0.0)
        n_a = tl.load(x + at_a, in_a, 0.0).to(tl.float32) * rstd
        n_b = tl.load(x + at_b, in_b, 0.0).to(tl.float32) * rstd
        sum_a += a * n_a
        sum_b += b * n_b
        if WEIGHT:
            a *= weight_a
            b *= weight_b
        if ACROSS:
            mean = tl.sum(a * n_a + b * n_b) / (heads * d)
        else:
            mean = tl.sum(a * n_a + b * n_b, 1, keep_dims=True) / d
        dx = dx_NHd + (row * heads + head) * d
        tl.store(dx + at_a, (rstd * (a - n_a * mean)).to(dx_NHd.dtype.element_ty), in_a)
        tl.store(dx + at_b, (rstd * (b - n_b * mean)).to(dx_NHd.dtype.element_ty), in_b)
    if WEIGHT:
        # Sums of every head; without ACROSS the provider adds the heads up.
        sums = sums_SC + (part * heads + head) * d
        tl.store(sums + at_a, sum_a, in_a)
        tl.store(sums + at_b, sum_b, in_b)


@triton.jit
def _pairs(heads, d, INTERLEAVED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr):
    """Heads [H, 1], channels a and b of their pairs [1, R], and which there are [H, R]."""
    head = tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    pair = tl.arange(0, BLOCK_R)[None, :]
    pairs = (d + 1) // 2
    if INTERLEAVED:
        at_a, at_b = 2 * pair, 2 * pair + 1
    else:
        at_a, at_b = pair, pair + pairs
    inside = (head < heads) & (pair < pairs)
    return head, at_a, at_b, inside, inside & (at_b < d)


@triton.jit
def _start(row, tokens, sample_stride, token_stride):
    """Where a token begins; ``row`` has 64 bits, and so has this."""
    sample = row // tokens
    return sample * sample_stride + (row - sample * tokens) * token_stride


@triton.jit
def _angles(row, tokens, cos_NR, sin_NR, d, cos_sample, cos_token, BLOCK_R: tl.constexpr):
    """Cosines and sines of a token, [1, R]."""
    pair = tl.arange(0, BLOCK_R)[None, :]
    at = _start(row, tokens, cos_sample, cos_token) + pair
    return tl.load(cos_NR + at, pair < d // 2, 1.0), tl.load(sin_NR + at, pair < d // 2, 0.0)
