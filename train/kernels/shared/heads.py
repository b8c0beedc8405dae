"""Queries and keys: checks of shapes and types, of weights and angles, and what weights say of the norm."""

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.shared.rows import accumulator


def are_across(
    q_BLHd: torch.Tensor, k_BMGd: torch.Tensor, weight_q: torch.Tensor | None, weight_k: torch.Tensor | None
) -> bool:
    """Return True if weights say that the heads of a token are normed together; of one head both kinds are one."""
    if weight_q is not None and q_BLHd.shape[-2] > 1:
        return len(weight_q) != q_BLHd.shape[-1]
    return weight_k is not None and k_BMGd.shape[-2] > 1 and len(weight_k) != k_BMGd.shape[-1]


def refuse_gradients(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Refuse angles that ask for a gradient.

    Raises:
        UsageError: they do.
    """
    for name, angles in (("cos", cos), ("sin", sin)):
        if angles.requires_grad:
            raise UsageError(f"{name} of the rotation asks for a gradient, and gets none: detach it")


def check(
    q_BLHd: torch.Tensor,
    k_BMGd: torch.Tensor,
    weight_q: torch.Tensor | None,
    weight_k: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    across_heads: bool | None,
    numerics: str,
) -> None:
    """Check keys, weights and angles against the queries; errors name them.

    Raises:
        UsageError: shapes or dtypes do not match, or the mode is unknown.
    """
    if numerics not in ("eager", "fp32"):
        raise UsageError(f"numerics must be eager or fp32, not {numerics}")
    shapes = [list(x.shape) for x in (q_BLHd, k_BMGd)]
    if not all(len(shape) == 4 for shape in shapes) or any(shapes[0][i] != shapes[1][i] for i in (0, 3)):
        raise UsageError(f"q must be [B, L, H, d] and k [B, M, G, d], not {shapes[0]} and {shapes[1]}")
    if q_BLHd.dtype != k_BMGd.dtype:
        raise UsageError(f"q and k must be of one type, not {q_BLHd.dtype} and {k_BMGd.dtype}")
    dtypes = (q_BLHd.dtype, accumulator(q_BLHd.dtype))
    weights = {"weight_q": (weight_q, q_BLHd), "weight_k": (weight_k, k_BMGd)}
    weight_shapes = {
        name: (weight, x.shape[2], x.shape[3]) for name, (weight, x) in weights.items() if weight is not None
    }
    for name, (weight, heads, d) in weight_shapes.items():
        if weight.dtype not in dtypes or len({weight.dtype for weight, _, _ in weight_shapes.values()}) > 1:
            raise UsageError(
                f"weights must be of one type, {dtypes[1]} or as q, {dtypes[0]}; {name} is {weight.dtype}"
            )
        if weight.shape not in ((d,), (heads * d,)):
            raise UsageError(
                f"{name} must be [{d}], of a head, or [{heads * d}], of all, not {list(weight.shape)}"
            )
    # With a single head both kinds coincide.
    kinds = {len(weight) == heads * d for weight, heads, d in weight_shapes.values() if heads > 1}
    if len(kinds) > 1:
        raise UsageError("weight_q and weight_k must both be of a head or both of all heads")
    weights_across = kinds.pop() if kinds else None
    if weights_across is not None and across_heads is not None and weights_across != across_heads:
        raise UsageError(
            f"across_heads={across_heads}, but the weights are of {'all heads' if weights_across else 'a head'}"
        )
    if cos is not None and sin is not None:
        _check_rotation((cos, sin), q_BLHd, k_BMGd)


def _check_rotation(
    rotation: tuple[torch.Tensor, torch.Tensor], q_BLHd: torch.Tensor, k_BMGd: torch.Tensor
) -> None:
    """Check angles against queries and keys.

    Raises:
        UsageError: shapes differ from [L, d / 2] and [B, L, d / 2]. Or the dtype is neither float32 nor that
            of sums (float64 for float64). Or keys have other positions than queries.
    """
    B, L, _, d = q_BLHd.shape
    if k_BMGd.shape[1] != L:
        raise UsageError(
            f"one rotation cannot turn {L} queries and {k_BMGd.shape[1]} keys: their numbers must agree"
        )
    if d % 2:
        raise UsageError(f"heads {d} wide do not divide into pairs: a rotation needs an even width")
    for name, angles in zip(("cos", "sin"), rotation, strict=True):
        if angles.shape not in ((L, d // 2), (B, L, d // 2)):
            raise UsageError(
                f"{name} of the rotation must be [{L}, {d // 2}] or [{B}, {L}, {d // 2}], not {list(angles.shape)}"
            )
        if angles.dtype not in (torch.float32, accumulator(q_BLHd.dtype)):
            raise UsageError(f"{name} of the rotation must be float32, not {angles.dtype}")
    if rotation[0].shape != rotation[1].shape:
        raise UsageError(f"cos and sin of the rotation differ in shape: {[list(x.shape) for x in rotation]}")
