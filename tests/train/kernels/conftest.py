"""What is compiled once for all tests of this folder."""

import ctypes
import fcntl
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.train.kernels.emulated import CSRC, EmulatedLauncher, build
from train.kernels.cuda.build import TORCH_TARGET


@contextmanager
def once_for_all(name: str, factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that all processes of this test run share, for one of them at a time."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="session")
def emulated_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The kernels' sources as libraries of the processor, by name of the file."""
    sources = sorted(CSRC.glob("*.cu"))
    with once_for_all("emulated", tmp_path_factory) as folder, ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda source: build(source, folder), sources)
        return {source.stem: library for source, library in zip(sources, built, strict=True)}


@pytest.fixture(scope="session")
def emulated_binding(
    emulated_kernels: dict[str, ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ctypes.CDLL]:
    """The host side in C++ for tensors of the processor, as torch.ops.reelweave_emulated; kernels are emulated."""
    flags = (
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-DREEL_EMULATED",
        f"-D{TORCH_TARGET}",
    )
    torch_root = Path(torch.__file__).parent
    places = ("-isystem", str(torch_root / "include"), "-L", str(torch_root / "lib"), "-ltorch_cpu")
    with once_for_all("binding", tmp_path_factory) as folder:
        library = folder / "binding.so"
        if not library.exists():
            command = ["g++", *flags, *map(str, sorted(CSRC.glob("*.cpp"))), *places, "-o", str(library)]
            subprocess.run(command, check=True)
    torch.ops.load_library(str(library))
    binding = ctypes.CDLL(str(library))
    launcher = EmulatedLauncher(emulated_kernels)

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, *[ctypes.c_int] * 5)
    def run(kernel: bytes, args: int, gx: int, gy: int, bx: int, by: int, shared: int) -> None:
        launcher.run(kernel.decode(), torch.device("cpu"), args, (gx, gy), (bx, by), shared)

    ctypes.c_void_p.in_dll(binding, "reel_emulate").value = ctypes.cast(run, ctypes.c_void_p).value
    yield binding
    # The callback lives as long as somebody may call it.
    del run
