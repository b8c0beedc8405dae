"""What is to be planned: the cascades of one iteration, and what each takes with every degree.

A sample here is what an iteration's plan moves as one: a microbatch of one bucket, of any B.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loader.base.arrays import Flags, Floats, Places
from loader.errors import UsageError


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
        gpus: that there are, all alike.
        degrees_K: numbers of GPUs that a cascade may run on, rising, int64 [K].
        seconds_SMK: time of a cascade, float64 [S, M, K]; infinite where it cannot run with so many GPUs, and for all
            of them where a sample has no such module, as no VAE with cached latents.
        memory_SMK: bytes at its peak on each of its GPUs, weights, gradients and all else that lies there included,
            float64 [S, M, K].
        memory: bytes of a GPU.

    Raises:
        UsageError: a sample's DiT, or a module that it has, fits with no degree.
    """

    gpus: int
    degrees_K: Places
    seconds_SMK: Floats
    memory_SMK: Floats
    memory: float

    def __post_init__(self) -> None:
        needed_SM = np.asarray(np.isfinite(self.seconds_SMK).any(axis=2))
        needed_SM[:, Module.DIT] = True
        stuck = np.argwhere(needed_SM & ~self.has_SM)
        if len(stuck):
            sample, module = stuck[0].tolist()
            least = self.memory_SMK[sample, module].min() / 2**30
            raise UsageError(
                f"the {Module(module).name} of sample {sample} fits with no degree up to {self.gpus} GPUs of"
                f" {self.memory / 2**30:.0f} GiB: it needs {least:.0f} GiB; allow a higher degree, or a smaller bucket"
            )

    @property
    def samples(self) -> int:
        """S."""
        return len(self.seconds_SMK)

    @cached_property
    def possible_SMK(self) -> Flags:
        """Which degrees a cascade may have: those that take a time, fit a GPU's memory, and are there."""
        fits_SMK = self.memory_SMK <= self.memory
        return np.isfinite(self.seconds_SMK) & fits_SMK & (self.degrees_K <= self.gpus)

    @cached_property
    def has_SM(self) -> Flags:
        """Which modules each sample has, bool [S, M]."""
        return np.asarray(self.possible_SMK.any(axis=2))

    @cached_property
    def times_SMK(self) -> Floats:
        """Seconds of what is possible; infinite elsewhere."""
        return np.where(self.possible_SMK, self.seconds_SMK, np.inf)

    @cached_property
    def work_SMK(self) -> Floats:
        """GPU-seconds of what is possible, float64 [S, M, K]; infinite elsewhere."""
        return self.times_SMK * self.degrees_K

    def cascades(self) -> Iterator[Cascade]:
        """All of them, sample by sample."""
        return (Cascade(sample, Module(module)) for sample, module in np.argwhere(self.has_SM).tolist())
