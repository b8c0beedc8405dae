"""All operators over the kernels of csrc/.

Who runs the kernels is a `Launcher`: the CUDA driver (`reelweave.train.kernels.cuda.driver`) or, in the
tests, the processor.
"""

from collections.abc import Callable

import torch

from reelweave.train.kernels.cuda.host_qk import HeadHost
from reelweave.train.kernels.cuda.host_tokens import TokenHost
from reelweave.train.kernels.cuda.launcher import Launcher
from reelweave.train.kernels.kernel_set import Kernels


def kernels(launcher: Launcher, serves: Callable[[torch.Tensor, str], bool]) -> Kernels:
    """All operators over these kernels; a new operator is added here."""
    hosts = TokenHost(launcher), HeadHost(launcher)
    operators = {name: run for host in hosts for name, run in host.operators().items()}
    return Kernels(serves, operators, checks=True)


def d_tile(launcher: Launcher, serves: Callable[[torch.Tensor, str], bool]) -> Kernels:
    """The operators of tokens by the paper's D-tile reduction alone (csrc/tiled.cuh), to be measured beside ours."""
    operators = TokenHost(launcher, tiled=True).operators()
    return Kernels(lambda x, numerics: x.dim() == 3 and serves(x, numerics), operators, checks=True)
