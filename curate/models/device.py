"""Devices of models, and inference that gives the same numbers for the same input."""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from threadpoolctl import ThreadpoolController

from reelweave.loader.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

Device = Literal["auto", "cpu", "cuda"]


def pick_device(device: Device) -> str:
    """Return "cpu" or "cuda"; "auto" means the GPU where there is one.

    Raises:
        UsageError: A GPU is configured, and there is none.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError("device=cuda asks for a GPU, and PyTorch finds none here; set device=auto or cpu")
    return "cuda" if has_gpu and device != "cpu" else "cpu"


@contextmanager
def inference(device: str, threads: int) -> Iterator[None]:
    """Disable gradients; use bfloat16 on the GPU, and float32 with ``threads`` threads on the CPU.

    The number of threads decides the order of sums in a product, and so its last bits.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[object]:
    """Limit numpy's matrix products to one thread.

    Parallelism comes from other sources instead. On a busy machine the threads of small products spin for
    each other and cost several times the product. The number of threads would also decide the last bits of
    sums.
    """
    limit: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limit


@cache
def _thread_pools() -> Any:
    import numpy  # noqa: F401  # the controller finds loaded libraries only

    return ThreadpoolController()


def weights_sha256(model: "nn.Module") -> str:
    """Return the hex digest of a model's tensors by name, independent of the file format."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
