"""Shared library of csrc/ for torch's stable ABI: location, compatibility, operators.

The file name holds the digest of the sources and the architectures, the newest also as PTX. One file serves
every PyTorch from 2.11 on, since it uses the stable ABI alone and links its CUDA runtime statically.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from reelweave.loader.errors import RunError, first_line
from reelweave.train.kernels.cuda import sources
from reelweave.train.kernels.cuda.sources import architectures, cache_folder, digest, serves
from reelweave.train.kernels.kernel_set import OPERATORS, Kernels

BUILD = "python -m reelweave.train.kernels build"
_NAME = re.compile(r"^reelweave-(?P<digest>[0-9a-f]+)-sm(?P<built>\d+(-\d+)*)\.so$")


def name(built: Sequence[int]) -> str:
    """Return the file name for these architectures, oldest first."""
    return f"reelweave-{digest()}-sm{'-'.join(map(str, built))}.so"


def runs_on(built: Sequence[int], architecture: int) -> bool:
    """Return True if a GPU is supported: by machine code of its generation, or by PTX of the newest architecture."""
    same = any(arch // 10 == architecture // 10 and arch <= architecture for arch in built)
    return same or architecture >= max(built)


def find(folder: Path, gpus: Sequence[int]) -> Path | str:
    """Return the library for these GPUs, or a sentence with the reason why there is none."""
    libraries = [(path, match) for path in sorted(folder.glob("*.so")) if (match := _NAME.match(path.name))]
    current = [(path, match) for path, match in libraries if match["digest"] == digest()]
    for path, match in current:
        built = [int(arch) for arch in match["built"].split("-")]
        if all(runs_on(built, gpu) for gpu in gpus):
            return path
    if current:
        gpu_list = " ".join(map(str, gpus))
        return f"{current[0][0].name} in {folder} is for other GPUs: {BUILD} --arch {gpu_list}"
    if libraries:
        return f"{libraries[0][0].name} in {folder} is of other sources: {BUILD} again"
    return f"not built: {BUILD}"


def lacks() -> str | None:
    """Return the reason why the library cannot be used here; None if it can."""
    if lack := sources.lacks():
        return lack
    library = find(cache_folder(), architectures())
    return library if isinstance(library, str) else None


def load() -> Kernels:
    """Load the operators of the library for the GPUs here."""
    library = find(cache_folder(), architectures())
    assert isinstance(library, Path)
    return loaded(library)


def loaded(path: Path) -> Kernels:
    """Load the operators of a library file; one per process.

    Raises:
        RunError: it does not load, or its CUDA runtime is too new for the driver.
    """
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise RunError(f"{path} does not load ({first_line(error)}): {BUILD} again") from error
    problem = ctypes.CDLL(str(path)).reel_problem
    problem.restype = ctypes.c_char_p
    if reason := problem():
        raise RunError(f"{path} cannot use the GPUs here: {reason.decode()}")
    return kernels(torch.ops.reelweave_library, serves)


def kernels(operators: Any, serves: Callable[[torch.Tensor, str], bool]) -> Kernels:
    """Return the operators in the torch.ops namespace of csrc/binding.cpp and csrc/binding_qk.cpp."""
    called: dict[str, Any] = {
        operator: _called(getattr(operators, operator).default) for operator in OPERATORS
    }
    return Kernels(serves=serves, **called)


def _called(operator: Any) -> Callable[..., Any]:
    """Wrap an operator: drop numerics, always fp32 here, and return None for an empty list."""
    return lambda *arguments: tuple(operator(*arguments[:-1])) or None
