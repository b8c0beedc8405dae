"""Assignment of modulation rows to tokens: per sample, per frame, per token or by group.

A modulation is [B, D] (a row per sample) or [B, F, D] (a row per frame). With ``cu_seqlens`` it is [n, D] over the
groups of one packed row of tokens [1, L, D]. The T tokens of a frame are adjacent, L = F T; F = L is a row per
token. All are one broadcast: tokens [B, F, T, D] with rows [B, F, 1, D], where a packed token is its own frame.
"""

import torch

from reelweave.loader.errors import UsageError


def check(
    x_BLD: torch.Tensor,
    branch_BLD: torch.Tensor | None,
    gate: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight_D: torch.Tensor | None,
    bias_D: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    numerics: str,
) -> None:
    """Check a branch, modulations, weights and biases against the tokens; errors name them.

    Raises:
        UsageError: shapes or dtypes do not match, or the mode is unknown.
    """
    if numerics not in ("eager", "fp32"):
        raise UsageError(f"numerics must be eager or fp32, not {numerics}")
    if branch_BLD is not None and (branch_BLD.shape != x_BLD.shape or branch_BLD.dtype != x_BLD.dtype):
        raise UsageError(
            f"y must have shape and type of residual: {list(x_BLD.shape)}, {x_BLD.dtype},"
            f" not {list(branch_BLD.shape)}, {branch_BLD.dtype}"
        )
    if x_BLD.dim() != 3:
        raise UsageError(f"x must be [B, L, D], not {list(x_BLD.shape)}")
    # Modulations have one shape and dtype, that of the tokens or of their sums.
    modulation = (
        {"scale": scale, "shift": shift} if gate is None else {"gate": gate, "scale": scale, "shift": shift}
    )
    (B, L, D), dtype = x_BLD.shape, x_BLD.dtype
    first, rows = next(iter(modulation.items()))
    shape, rows_dtype = rows.shape, rows.dtype
    for name, other in modulation.items():
        if other is not rows and (other.shape != shape or other.dtype != rows_dtype):
            raise UsageError(f"{name} must have shape and type of {first}: {list(shape)}, {rows_dtype}")
    if rows_dtype != dtype and rows_dtype != accumulator(dtype):
        raise UsageError(f"{first} is {rows_dtype}; it must be {accumulator(dtype)} or as x, {dtype}")
    # Rows of the modulation: ragged groups, samples, or frames that divide the tokens.
    if cu_seqlens is not None:
        if B != 1 or len(shape) != 2 or shape[0] == 0 or cu_seqlens.shape != (shape[0] + 1,):
            raise UsageError(
                f"with cu_seqlens of n + 1 numbers, x must be [1, L, D] and {first} [n, D];"
                f" they are {list(cu_seqlens.shape)}, {list(x_BLD.shape)} and {list(shape)}"
            )
        if cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise UsageError(f"cu_seqlens must be int32 or int64, not {cu_seqlens.dtype}")
    elif len(shape) not in (2, 3) or shape[0] != B:
        raise UsageError(f"{first} must be [B, D] or [B, F, D] with B = {B}, not {list(shape)}")
    elif len(shape) == 3 and (shape[1] == 0 or L % shape[1]):
        raise UsageError(f"{L} tokens do not divide into the {shape[1]} frames of {first}")
    if shape[-1] != D:
        raise UsageError(f"{first} is {shape[-1]} wide and x {D}")
    for name, parameter in (("weight", weight_D), ("bias", bias_D)):
        if parameter is not None and parameter.shape != (D,):
            raise UsageError(f"{name} must be [{D}], as wide as x, not {list(parameter.shape)}")


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of statistics and sums for activations: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def cut(x_BLD: torch.Tensor, rows: torch.Tensor, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """Return the tokens grouped by modulation row, [B, F, T, D]; a view."""
    if cu_seqlens is not None:
        return x_BLD.unsqueeze(2)
    frames = 1 if rows.dim() == 2 else rows.shape[1]
    B, L, D = x_BLD.shape
    # Splitting a dimension never copies.
    return x_BLD.view(B, frames, L // frames, D)


def spread(rows: torch.Tensor, tokens: int, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """Return the rows in the shape that broadcasts over `cut` tokens, [B, F, 1, D]."""
    if cu_seqlens is not None:
        return rows.index_select(0, owner(cu_seqlens, tokens))[None, :, None]
    return rows[:, None, None] if rows.dim() == 2 else rows[:, :, None]


def collect(
    values_BFTD: torch.Tensor, rows: torch.Tensor, cu_seqlens: torch.Tensor | None, as_autograd: bool = False
) -> torch.Tensor:
    """Sum over each row's tokens, in a fixed order; shape and dtype of ``rows``.

    Args:
        values_BFTD: values in the layout of `cut`.
        rows: rows of the modulation.
        cu_seqlens: offsets as in `check`; on a GPU they are read back to the host.
        as_autograd: add groups token by token in the dtype of ``values``, as autograd does for a gather.
    """
    if cu_seqlens is None:
        sums_BFD = values_BFTD.sum(dim=2)
        return (sums_BFD[:, 0] if rows.dim() == 2 else sums_BFD).to(rows.dtype)
    values_LD = values_BFTD[0, :, 0]
    # On a GPU index_add is atomic, without a fixed order.
    if as_autograd and not values_LD.is_cuda:
        sums_nD = values_LD.new_zeros(rows.shape)
        return sums_nD.index_add_(0, owner(cu_seqlens, len(values_LD)), values_LD).to(rows.dtype)
    parts = torch.split(values_LD, cu_seqlens.diff().tolist())
    return torch.stack([part_TD.sum(dim=0) for part_TD in parts]).to(rows.dtype)


def owner(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the group of each token, int64 [L].

    Raises:
        UsageError: the groups do not cover the tokens (checked on the CPU alone, since a GPU would stall).
    """
    counts_n = cu_seqlens.diff().long()
    if not cu_seqlens.is_cuda and (cu_seqlens[0] != 0 or cu_seqlens[-1] != tokens or (counts_n < 0).any()):
        raise UsageError(f"cu_seqlens must rise from 0 to the {tokens} tokens, not {cu_seqlens.tolist()}")
    return torch.arange(len(counts_n), device=counts_n.device).repeat_interleave(counts_n, output_size=tokens)
