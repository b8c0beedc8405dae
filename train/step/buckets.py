"""Buckets of tensors that are exchanged or updated together."""

from collections.abc import Sequence
from typing import TypeVar

import torch

Key = TypeVar("Key")


def fill_buckets(sizes: Sequence[tuple[Key, torch.dtype, int]], max_values: int) -> list[list[Key]]:
    """Divide tensors into buckets of one dtype, in their order.

    Args:
        sizes: name or other key, dtype and number of values of each tensor.
        max_values: number of values of a bucket, unless one tensor alone has more.
    """
    buckets: list[list[Key]] = []
    for bucket_dtype in dict.fromkeys(dtype for _, dtype, _ in sizes):
        bucket: list[Key] = []
        total = 0
        for key, dtype, values in sizes:
            if dtype != bucket_dtype:
                continue
            if bucket and total + values > max_values:
                buckets.append(bucket)
                bucket, total = [], 0
            bucket.append(key)
            total += values
        buckets.append(bucket)
    return buckets
