"""Where models run, and running them so that the same input gives the same numbers."""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from threadpoolctl import ThreadpoolController

from loader.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

Device = Literal["auto", "cpu", "cuda"]


def pick_device(wanted: Device) -> str:
    """The device meant, "cpu" or "cuda"; "auto" means the GPU where there is one.

    Raises:
        UsageError: a GPU is asked for, and there is none.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise UsageError("device=cuda asks for a GPU, and PyTorch finds none here; set device=auto or cpu")
    return "cuda" if has_gpu and wanted != "cpu" else "cpu"


@contextmanager
def inference(device: str, threads: int) -> Iterator[None]:
    """No gradients; bfloat16 on the GPU; on the CPU float32 with ``threads`` threads.

    How many threads share a product decides the order of its sums, and so its last bits.
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
    """Keep numpy's matrix products on one thread.

    Sources run side by side instead. On a busy machine the threads of small products spin for each other and cost
    several times the product; how many there are would also decide the last bits of its sums.
    """
    limit: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limit


@cache
def _thread_pools() -> Any:
    import numpy  # noqa: F401  # only libraries that are loaded are found

    return ThreadpoolController()


def weights_sha256(model: "nn.Module") -> str:
    """Hex digest of all tensors of a model, by name: the same for the same weights in any file format."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
