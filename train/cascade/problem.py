"""Planning problem of one iteration: its cascades, and their time and memory at every degree.

A sample is the unit that a plan moves: a microbatch of one bucket, of any B.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.errors import UsageError


class Module(IntEnum):
    """The modules of a sample; its DiT needs the results of the others."""

    TEXT = 0
    VAE = 1
    DIT = 2


class Cascade(NamedTuple):
    """One module applied to one sample."""

    sample: int
    module: Module


@dataclass(frozen=True, eq=False)
class Problem:
    """S samples of M modules with K degrees.

    Attributes:
        gpus: number of identical GPUs.
        degrees_K: numbers of GPUs that a cascade may run on, rising, int64 [K].
        seconds_SMK: time of a cascade, float64 [S, M, K]. Infinite at a degree that the module does not
            support, and where a sample lacks the module, as the VAE with cached latents.
        memory_SMK: peak bytes of a cascade on each of its GPUs, including weights, gradients and other resident
            state, float64 [S, M, K].
        memory: memory of one GPU in bytes.

    Raises:
        UsageError: a sample's DiT, or another module that it has, fits at no degree.
    """

    gpus: int
    degrees_K: IndexArray
    seconds_SMK: Floats
    memory_SMK: Floats
    memory: float

    def __post_init__(self) -> None:
        needed_SM = np.asarray(np.isfinite(self.seconds_SMK).any(axis=2))
        needed_SM[:, Module.DIT] = True
        stuck = np.argwhere(needed_SM & ~self.has_SM)
        if len(stuck):
            sample, module = stuck[0].tolist()
            raise UsageError(
                f"the {Module(module).name} of sample {sample} fits with no degree up to {self.gpus} GPUs:"
                f" {self._why(sample, module)}; allow a higher degree, or a smaller bucket"
            )

    def _why(self, sample: int, module: int) -> str:
        """Return why a module runs at no degree; memory as a ratio, since tables count bytes or tokens."""
        able_K = np.isfinite(self.seconds_SMK[sample, module]) & (self.degrees_K <= self.gpus)
        if not able_K.any():
            return "no degree of the plan is possible there"
        memory_K = np.where(able_K, self.memory_SMK[sample, module], np.inf)
        k = int(memory_K.argmin())
        return f"with {self.degrees_K[k]} it needs {memory_K[k] / self.memory:.2f} times the memory of a GPU"

    @property
    def samples(self) -> int:
        """Number of samples, the dimension S."""
        return len(self.seconds_SMK)

    @cached_property
    def possible_SMK(self) -> Flags:
        """Feasible degrees: finite time, within a GPU's memory, and no more GPUs than exist; bool [S, M, K]."""
        fits_SMK = self.memory_SMK <= self.memory
        return np.isfinite(self.seconds_SMK) & fits_SMK & (self.degrees_K <= self.gpus)

    @cached_property
    def has_SM(self) -> Flags:
        """Modules present in each sample, bool [S, M]."""
        return np.asarray(self.possible_SMK.any(axis=2))

    @cached_property
    def times_SMK(self) -> Floats:
        """Seconds at feasible degrees, float64 [S, M, K]; infinite elsewhere."""
        return np.where(self.possible_SMK, self.seconds_SMK, np.inf)

    @cached_property
    def work_SMK(self) -> Floats:
        """GPU-seconds at feasible degrees, float64 [S, M, K]; infinite elsewhere."""
        return self.times_SMK * self.degrees_K

    def cascades(self) -> Iterator[Cascade]:
        """Iterate over all cascades, sample by sample."""
        return (Cascade(sample, Module(module)) for sample, module in np.argwhere(self.has_SM).tolist())
