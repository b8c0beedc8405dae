"""Operators through NVRTC and the CUDA driver; import it only with a GPU."""

import ctypes

import torch

from reelweave.train.kernels.cuda import host, nvrtc
from reelweave.train.kernels.cuda.driver import TorchLauncher
from reelweave.train.kernels.cuda.sources import serves


def _binary(kernel: str, architecture: int) -> bytes:
    return nvrtc.binary(nvrtc.unit_of(kernel), architecture)


def _stream(device: torch.device) -> int:
    # As compilers of PyTorch's do, since a stream's object in Python costs microseconds.
    return torch._C._cuda_getCurrentRawStream(device.index)


_DRIVER = TorchLauncher(ctypes.CDLL("libcuda.so.1"), _binary, _stream)
KERNELS = host.kernels(_DRIVER, serves)
D_TILE = host.d_tile(_DRIVER, serves)
"""D-tile reduction alone, for the benchmark."""
