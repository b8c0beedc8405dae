"""What is compiled once for all tests of this folder."""

import ctypes
import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.train.kernels.emulated import CSRC, build, cuda_headers

BUILT = CSRC.parent / "build" / "emulated"
SOURCES = [Path(__file__), *Path(__file__).parent.glob("emulat*"), *CSRC.iterdir()]
"""All that decides what is compiled here, beside PyTorch and CUDA."""


@contextmanager
def once_for_all(name: str) -> Iterator[Path]:
    """A folder for libraries of these sources, which later test runs find again, for one process at a time."""
    said = hashlib.sha256(torch.__version__.encode())
    for source in [*sorted(SOURCES), cuda_headers() / "cuda_bf16.h"]:
        said.update(source.name.encode() + source.read_bytes())
    folder = BUILT / f"{name}-{said.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for older in BUILT.glob(f"{name}-*"):
            if older != folder:
                shutil.rmtree(older)
        yield folder


@pytest.fixture(scope="session")
def emulated_kernels() -> dict[str, ctypes.CDLL]:
    """The kernels' sources as libraries of the processor, by name of the file."""
    sources = sorted(CSRC.glob("*.cu"))
    with once_for_all("kernels") as folder, ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda source: build(source, folder), sources)
        return {source.stem: library for source, library in zip(sources, built, strict=True)}
