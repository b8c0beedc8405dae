"""Activation checkpointing, compilation and offload of blocks.

All replace a block's ``forward`` inside FSDP's hooks, so that parameter names stay.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

ActivationPolicy = Literal["none", "full", "offload", "selective", "memory_budget"]
_MIN_OFFLOADED_BYTES = 1 << 20

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
        policy: what is kept; offload keeps what full does.
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


def offload_block(block: nn.Module) -> None:
    """Keep what a block saves for its backward on the host: under full checkpointing its inputs alone.

    Copies run on the stream of the computation, so that memory is reused in order. The last step for a block whose
    forward is compiled.

    Args:
        block: block whose forward is replaced.
    """
    inner = block.forward

    def forward(*inputs: Any, **options: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(_to_host, _from_host):
            return inner(*inputs, **options)

    block.forward = forward


def _to_host(saved: torch.Tensor) -> tuple[torch.device, Any]:
    """Return the device of a tensor and a copy on the host; a small one as it is."""
    if saved.nbytes < _MIN_OFFLOADED_BYTES:
        return saved.device, saved
    if isinstance(saved, FakeTensor):
        return saved.device, (saved.shape, saved.dtype)  # the memory that is predicted is not the host's
    host = torch.empty(saved.shape, dtype=saved.dtype, pin_memory=saved.is_cuda)
    return saved.device, host.copy_(saved, non_blocking=True)


def _from_host(packed: tuple[torch.device, Any]) -> torch.Tensor:
    device, host = packed
    if isinstance(host, tuple):
        shape, dtype = host
        return torch.empty(shape, dtype=dtype, device=device)
    copied: torch.Tensor = host.to(device, non_blocking=True)
    return copied


def keeps(operator: Any) -> bool:
    """Return True if selective checkpointing keeps the results of an operator."""
    return operator in KEPT or str(operator) in KEPT_BY_NAME


def _keep(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if keeps(operator) else CheckpointPolicy.PREFER_RECOMPUTE
