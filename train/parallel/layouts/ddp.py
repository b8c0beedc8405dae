"""Data parallelism: replicated weights, gradients and optimizer state, with tensor and pipeline parallelism."""

from reelweave.train.parallel.layouts.parallel_model import ParallelModel


class DDP(ParallelModel):
    """Whole state on every data-parallel rank; gradients are summed once per step."""
