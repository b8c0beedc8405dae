"""Fit of M_mem to measured memory peaks: the tokens of a microbatch that fit into a GPU."""

from dataclasses import dataclass

import numpy as np

from reelweave.loader.buckets.measured_shapes import read_measured
from reelweave.loader.errors import UsageError

_LEAST_SHAPES = 3
_LARGEST_ERROR = 0.05


@dataclass(frozen=True)
class MemoryFit:
    """Fit of peak = a + b*B*S: weights, gradients and optimizer state, plus activations per token.

    Attributes:
        fixed_gib: a in GiB, raised until the line lies above all measured peaks.
        token_gib: b in GiB per token.
        worst_error: maximum of |predicted / measured - 1|, before the line was raised.
    """

    fixed_gib: float
    token_gib: float
    worst_error: float

    def tokens(
        self, limit_gib: float, advice: str = "shard the model further, or checkpoint activations"
    ) -> int:
        """Return M_mem, the tokens of a microbatch whose peak stays below a limit.

        Args:
            limit_gib: memory of a GPU that a step may use.
            advice: remedy to name where too few fit.

        Raises:
            UsageError: fewer than a thousand tokens fit.
        """
        tokens = int((limit_gib - self.fixed_gib) / self.token_gib)
        if tokens < 1000:
            raise UsageError(
                f"{limit_gib:g} GiB hold {max(tokens, 0)} tokens: {self.fixed_gib:.3g} GiB are taken before the first;"
                f" {advice}"
            )
        return tokens


def fit_memory(text: str, name: str) -> MemoryFit:
    """Fit the peaks of a shape benchmark, CSV with the columns batch, length and peak_gib.

    Args:
        text: content of the file.
        name: file name for messages.

    Raises:
        UsageError: the file is invalid, has too few shapes, or its peaks do not lie on a line.
    """
    batch, length, peak = read_measured(text, name, ("batch", "length", "peak_gib")).T
    tokens = batch * length
    if len(np.unique(tokens)) < _LEAST_SHAPES:
        raise UsageError(
            f"{name}: peaks of {len(np.unique(tokens))} sizes B*S, and {_LEAST_SHAPES} are needed"
        )
    token, fixed = np.polyfit(tokens, peak, 1)
    line = fixed + token * tokens
    worst = float(np.abs(line / peak - 1).max())
    if token <= 0 or worst > _LARGEST_ERROR:
        raise UsageError(
            f"{name}: the measured peaks are up to {worst:.0%} off a line a + b*B*S; measure each shape in a fresh"
            " process, or set memory_tokens by hand"
        )
    return MemoryFit(float(fixed + (peak - line).max()), float(token), worst)
