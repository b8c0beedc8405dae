"""Buckets of parameters that begin a collective as soon as a backward has completed their gradients.

The order is fixed, as in PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", 2020, section 3.2.3).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn


class ReadyBuckets:
    """Buckets that begin during the last backward of a step.

    Ranks must begin collectives in the same order, but may complete gradients in any. A bucket therefore begins when it
    and all buckets before it are complete.

    Args:
        buckets: parameters of each bucket, in the order of their collectives.
        begin: function that begins the collective of a bucket, by its number.
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], begin: Callable[[int], None]) -> None:
        self._sizes = [len(bucket) for bucket in buckets]
        self._begin = begin
        self._missing: list[int] = []
        self._armed, self.begun = False, 0
        for index, bucket in enumerate(buckets):
            for parameter in bucket:
                hook: Any = partial(self._complete, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's own

    def arm(self) -> None:
        """Announce that the next backward is the last one before `finish`."""
        self._missing, self._armed, self.begun = list(self._sizes), True, 0

    def finish(self) -> None:
        """Begin the buckets that remain: some parameters may have had no part in the backward."""
        if not self._armed:
            self.arm()
        self._armed = False
        for index in range(self.begun, len(self._sizes)):
            self._begin(index)
        self.begun = len(self._sizes)

    @torch.no_grad()
    def _complete(self, index: int, _: torch.Tensor) -> None:
        if not self._armed:
            return
        self._missing[index] -= 1
        while self.begun < len(self._missing) and self._missing[self.begun] == 0:
            self._begin(self.begun)
            self.begun += 1
