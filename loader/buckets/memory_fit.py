"""M_mem from measured peaks: how many tokens of a microbatch fit into a GPU."""

from dataclasses import dataclass

import numpy as np

from loader.buckets.measured_shapes import read_measured
from loader.errors import UsageError

_LEAST_SHAPES = 3
_LARGEST_ERROR = 0.05


@dataclass(frozen=True)
class MemoryFit:
    """peak = a + b*B*S: weights, gradients and optimizer, and what each token's activations take.

    Attributes:
        fixed_gib: a, above which no measured peak lies by more than the line says.
        token_gib: b.
        worst_error: largest of |predicted / measured - 1|, before the line was raised above all peaks.
    """

    fixed_gib: float
    token_gib: float
    worst_error: float

    def tokens(self, limit_gib: float) -> int:
        """M_mem: tokens of a microbatch whose peak stays below a limit.

        Raises:
            UsageError: not even a thousand fit.
        """
        tokens = int((limit_gib - self.fixed_gib) / self.token_gib)
        if tokens < 1000:
            raise UsageError(
                f"{limit_gib:g} GiB hold {max(tokens, 0)} tokens: {self.fixed_gib:.3g} GiB are taken before the first;"
                " shard the model further, or checkpoint activations"
            )
        return tokens


def fit_memory(text: str, name: str) -> MemoryFit:
    """Fits the peaks of a shape benchmark, CSV with the columns batch, length and peak_gib.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        UsageError: the file cannot be read, too few shapes were measured, or the peaks lie on no line.
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
