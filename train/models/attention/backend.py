"""Implementation of attention that PyTorch takes first, in all models of a process.

Attention over all tokens of a sample is `scaled_dot_product_attention`, in our models and in published ones, compiled
or not. PyTorch takes the first of its fused kernels that serves a call. From 2.11 on that is cuDNN's on Hopper and
Blackwell, with cuDNN above 9.15, and FlashAttention 2 elsewhere.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn import attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.settings import Settings
from reelweave.train.config.model import TransformerConfig
from reelweave.train.config.parallel import AttentionBackend
from reelweave.train.config.parts import Dtype

_log = logging.getLogger(__name__)

_NAMES = {
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
    SDPBackend.FLASH_ATTENTION: "FlashAttention 2",
    SDPBackend.EFFICIENT_ATTENTION: "PyTorch's memory-efficient kernel",
    SDPBackend.MATH: "matrix products and a softmax",
}
"""Implementations of PyTorch, in the order of preference behind the first."""
_PUBLISHED_WIDTH = 128  # of most published models, unread as yet
_REPLACED = {"flash3": ("FA3", "FlashAttention 3"), "flash4": ("FA4", "FlashAttention 4")}
"""Packages that replace FlashAttention 2: PyTorch's name, and ours."""


@contextmanager
def attention_backend(
    backend: AttentionBackend, model: Settings, dtype: Dtype, device: torch.device, required: bool = True
) -> Iterator[None]:
    """Let attention on a GPU take the implementation of a run first, wherever that serves; logs the one of its model.

    Args:
        backend: ``parallel.attention`` of the run.
        model: configuration of its model.
        dtype: dtype of its activations.
        device: device of the model; without an effect on a processor.
        required: True if the run must have it, False to take PyTorch's choice where it does not serve.

    Raises:
        UsageError: the implementation is required and does not serve such a model here.
    """
    if device.type != "cuda":
        yield
        return
    width = model.hidden // model.heads if isinstance(model, TransformerConfig) else _PUBLISHED_WIDTH
    q_BHLD = torch.zeros(1, 1, 128, width, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    # PyTorch sets its own order at its first choice, over any that was set before.
    usual = _NAMES.get(_backend_taken(q_BHLD), "another")
    with ExitStack() as stack:
        name = usual
        if backend != "auto":
            try:
                name = stack.enter_context(prefer_backend(backend, q_BHLD, usual))
            except UsageError as error:
                if required:
                    raise
                _log.warning("%s", error)
        _log.info("attention: %s (parallel.attention=%s)", name, backend)
        yield


@contextmanager
def prefer_backend(backend: AttentionBackend, q_BHLD: torch.Tensor, usual: str) -> Iterator[str]:
    """Put an implementation first that serves such heads; gives its name.

    Raises:
        UsageError: it does not serve them.
    """
    with first(backend):
        if problem := _problem(backend, q_BHLD):
            raise UsageError(
                f"parallel.attention={backend} does not serve heads of {q_BHLD.shape[-1]} in {q_BHLD.dtype} here"
                f" ({problem}): auto takes {usual}"
            )
        yield _REPLACED[backend][1] if backend in _REPLACED else _NAMES[_backend(backend)]


@contextmanager
def first(backend: AttentionBackend) -> Iterator[None]:
    """Put an implementation first in PyTorch's order; all attention on GPUs by this process follows it.

    Raises:
        UsageError: its package cannot be used.
    """
    if backend == "auto":
        yield
        return
    if backend in _REPLACED:
        module, name = _REPLACED[backend]
        try:
            attention.activate_flash_attention_impl(module)
        except (ImportError, AttributeError, RuntimeError, OSError, ValueError) as error:
            raise UsageError(
                f"parallel.attention={backend} cannot load its kernels: {first_line(error)}; install {name}, or leave"
                " parallel.attention at auto"
            ) from error
    chosen = _backend(backend)
    try:
        with sdpa_kernel([chosen, *(other for other in _NAMES if other != chosen)], set_priority=True):
            yield
    finally:
        if backend in _REPLACED and hasattr(attention, "restore_flash_attention_impl"):
            attention.restore_flash_attention_impl()


def _backend(backend: AttentionBackend) -> SDPBackend:
    """Return PyTorch's name of an implementation, which FlashAttention 3 and 4 take from 2."""
    return SDPBackend.CUDNN_ATTENTION if backend == "cudnn" else SDPBackend.FLASH_ATTENTION


def _backend_taken(q_BHLD: torch.Tensor) -> SDPBackend:
    """Return what PyTorch takes for such heads in training, without a mask."""
    return SDPBackend(torch._fused_sdp_choice(q_BHLD, q_BHLD, q_BHLD))


def _problem(backend: AttentionBackend, q_BHLD: torch.Tensor) -> str | None:
    """Return why an implementation does not train such heads; None: it does."""
    if _backend_taken(q_BHLD) != _backend(backend):
        return "PyTorch passes it over"
    try:
        output_BHLD = F.scaled_dot_product_attention(q_BHLD, q_BHLD, q_BHLD)
        torch.autograd.grad(output_BHLD.sum(), q_BHLD)[0].sum().item()
    except (RuntimeError, ImportError, ValueError) as error:
        return first_line(error)
    return None
