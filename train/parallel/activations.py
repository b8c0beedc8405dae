"""Activation checkpointing and compilation of blocks.

Both replace a block's ``forward`` inside FSDP's hooks, so that parameter names stay.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

ActivationPolicy = Literal["none", "full", "selective", "memory_budget"]

_aten = torch.ops.aten
KEPT = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_mm.default,
        # The scale of an FP8 tensor: one number from a pass over all of it.
        _aten.max.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)
"""Compute-bound operators, whose results selective checkpointing keeps."""
KEPT_BY_NAME = frozenset({"torch_attn._varlen_attn.default", "flex_attention"})
"""Such operators of modules that import the compiler."""


def checkpoint_block(block: nn.Module, policy: ActivationPolicy, draws: bool = False) -> None:
    """Make a block recompute in its backward what the policy does not keep.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. A memory budget is left to the compiler.

    Args:
        block: block whose forward is replaced.
        policy: what is kept.
        draws: True if the forward draws random numbers, as dropout does: the backward then draws the same again.
    """
    if policy in ("none", "memory_budget"):
        return
    how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    if policy == "selective":
        how["context_fn"] = partial(create_selective_checkpoint_contexts, _keep)
    block.forward = partial(checkpoint, block.forward, **how)


def compile_block(
    block: nn.Module, memory_budget: float = 1.0, backend: str = "inductor", as_eager: bool = False
) -> None:
    """Compile a block at its first run.

    Args:
        block: block whose forward is compiled.
        memory_budget: share of its activations to keep; 1 keeps what makes it fastest.
        backend: backend of torch.compile.
        as_eager: round to the narrow dtype wherever separate operators would, though fused. Otherwise rowwise
            FP8 products see other numbers in backward than in forward, which ends in NaN (pytorch#150859).
    """
    options: Any = {"emulate_precision_casts": True} if as_eager else None
    compiled: Callable[..., Any] = torch.compile(block.forward, backend=backend, options=options)

    def forward(*inputs: Any, **options: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=memory_budget):
            return compiled(*inputs, **options)

    block.forward = forward


def keeps(operator: Any) -> bool:
    """Return True if selective checkpointing keeps the results of an operator."""
    return operator in KEPT or str(operator) in KEPT_BY_NAME


def _keep(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if keeps(operator) else CheckpointPolicy.PREFER_RECOMPUTE
