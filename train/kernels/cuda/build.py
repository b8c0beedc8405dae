"""Build of the csrc/ library with plain nvcc, its check on the GPUs here, and its installation."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import RunError, UsageError
from reelweave.train.kernels.cuda import library
from reelweave.train.kernels.cuda.gates import nvcc, nvcc_release
from reelweave.train.kernels.cuda.sources import CSRC, OLDEST, architectures, cache_folder

DEFAULT = (80, 90, 100)
"""Default architectures without a GPU: A100, H100 and H200, B200."""
TORCH_TARGET = "TORCH_TARGET_VERSION=0x020b000000000000"
"""Oldest supported PyTorch, 2.11."""
OLDEST_NVCC = (12, 0)


@dataclass(frozen=True)
class Built:
    """An installed kernel library.

    Attributes:
        path: path of the file.
        seconds: compile time.
        checked: output of the check on the GPUs here; None without a GPU, when nothing was run.
    """

    path: Path
    seconds: float
    checked: str | None


def build(targets: Sequence[int] = (), out: Path | None = None) -> Built:
    """Compile, check and install the library; an older one stays until the new one is complete and correct.

    Args:
        targets: architectures, such as 90; empty: those of the GPUs here, or else `DEFAULT`.
        out: target folder; None: `cache_folder`, which is searched at run time.

    Raises:
        UsageError: the kernels or nvcc do not support an architecture.
        RunError: the compiler is missing or fails, the folder is not writable, or a check fails.
    """
    built = sorted(set(targets)) or architectures() or list(DEFAULT)
    compiler = _compiler(built)
    for gpu in architectures():
        if not library.runs_on(built, gpu):
            raise UsageError(f"a GPU here is sm_{gpu}, on which this could not be checked: add --arch {gpu}")
    path = (out or cache_folder()) / library.name(built)
    try:
        with whole_file(path) as aside:
            aside.touch()  # what cannot be written is found before the compiler runs
            start = perf_counter()
            _run(command(compiler, built, aside, sources()))
            seconds = perf_counter() - start
            checked = _checked(aside)
    except OSError as error:
        raise RunError(
            f"{path.parent} cannot be written ({error.strerror}): --out names another folder"
        ) from error
    return Built(path, seconds, checked)


def sources() -> list[Path]:
    """Return the compiled files: kernels and their host code."""
    return sorted((*CSRC.glob("*.cu"), *CSRC.glob("*.cpp")))


def command(compiler: Path, built: Sequence[int], path: Path, sources: Sequence[Path]) -> list[str]:
    """Return the nvcc command that builds the library `path`; architectures in rising order."""
    torch_root = Path(torch.__file__).parent
    codes = [f"arch=compute_{arch},code=sm_{arch}" for arch in built]
    codes.append(f"arch=compute_{built[-1]},code=compute_{built[-1]}")
    return [
        *(str(compiler), "-shared", "-std=c++17", "-O3", "--threads=0", "-cudart=static"),
        *("-Xcompiler=-fPIC", "-Xlinker=-z,defs", "-DREEL_LIBRARY", "-DUSE_CUDA", f"-D{TORCH_TARGET}"),
        *(f"-gencode={code}" for code in codes),
        *(f"-isystem={torch_root / 'include'}", f"-L{torch_root / 'lib'}", "-ltorch_cpu", "-ltorch_cuda"),
        *map(str, sources),
        *("-o", str(path)),
    ]


def _compiler(built: Sequence[int]) -> Path:
    compiler = nvcc()
    if compiler is None:
        raise RunError(
            "nvcc is not on PATH: install the CUDA toolkit, or set REELWEAVE_KERNELS=nvrtc, which needs no compiler"
        )
    if not (Path(torch.__file__).parent / "lib/libtorch_cuda.so").exists():
        raise RunError(
            f"PyTorch {torch.__version__} is built without CUDA: the library needs one that is not"
        )
    release = nvcc_release() or "unknown"
    if tuple(map(int, re.findall(r"\d+", release))) < OLDEST_NVCC:
        raise RunError(
            f"nvcc {release} is too old: the kernels need {'.'.join(map(str, OLDEST_NVCC))} or newer"
        )
    listed = subprocess.run([compiler, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    supported = {int(arch) for arch in re.findall(r"compute_(\d+)", listed)}
    for arch in built:
        if arch < OLDEST:
            raise UsageError(f"sm_{arch} is too old: the kernels need sm_{OLDEST} or newer")
        if arch not in supported:
            raise UsageError(
                f"nvcc {release} does not know sm_{arch}; it knows {', '.join(map(str, sorted(supported)))}"
            )
    return compiler


def _checked(path: Path) -> str | None:
    """Check every operator in a subprocess, since a wrong kernel may crash it."""
    if not architectures():
        return None
    return _run([sys.executable, "-P", "-m", "reelweave.train.kernels", "check", "--library", str(path)])


def _run(arguments: Sequence[str]) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RunError(
            f"{Path(arguments[0]).name} fails, and nothing is installed:\n" + "\n".join(lines[-12:])
        )
    return done.stdout.strip()
