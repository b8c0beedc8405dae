"""What is compiled once for all tests of this folder."""

import ctypes
from pathlib import Path

import pytest

from tests.train.emulated import CSRC, build


@pytest.fixture(scope="session")
def emulated_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The kernels' sources as libraries of the processor, by name of the file."""
    into: Path = tmp_path_factory.mktemp("emulated")
    return {source.stem: build(source, into) for source in sorted(CSRC.glob("*.cu"))}
