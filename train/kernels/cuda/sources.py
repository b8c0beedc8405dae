"""Kernel sources, target GPUs, and the cache folder of compiled code."""

import hashlib
import os
from functools import cache
from pathlib import Path

import torch

CSRC = Path(__file__).parent / "csrc"
"""Link to csrc/ in a checkout; a folder in a wheel."""
OLDEST = 80
"""Oldest architecture, the first with the kernels' asynchronous copies."""


@cache
def digest(*more: str) -> str:
    """Return a digest of the sources and of further inputs of the compilation."""
    hasher = hashlib.sha256()
    for path in sorted(CSRC.iterdir()):
        if path.suffix in (".cu", ".cuh", ".h"):
            hasher.update(f"{path.name}\0".encode() + path.read_bytes())
    hasher.update("\0".join(more).encode())
    return hasher.hexdigest()[:16]


def cache_folder() -> Path:
    """Return the cache folder: `$XDG_CACHE_HOME`/reelweave/kernels, by default under ~/.cache.

    Not beside the package, which may be read-only and shared by machines with other GPUs.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base), "reelweave", "kernels")  # noqa: PTH111 - expanduser of Path may raise


def architectures() -> list[int]:
    """Return the architectures of the GPUs here, such as [80, 90]."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return []
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return sorted({10 * major + minor for major, minor in capabilities})


def lacks() -> str | None:
    """Return the reason why the kernels of csrc/ cannot run on the GPUs here; None if they can."""
    gpus = architectures()
    if not gpus:
        return "no NVIDIA GPU that this PyTorch can use"
    if gpus[0] < OLDEST:
        return f"a GPU here is sm_{gpus[0]}, and they need sm_{OLDEST} or newer"
    return None if CSRC.is_dir() else f"their sources are missing: {CSRC}"


def serves(x_BLD: torch.Tensor, numerics: str) -> bool:
    """Return True for nonempty GPU tokens in ``fp32`` numerics, which the kernels of csrc/ support."""
    has_dtype = x_BLD.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return x_BLD.is_cuda and has_dtype and numerics == "fp32" and x_BLD.numel() > 0
