"""Members of neighbouring samples that are read together."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.dataset.tars.members import Members


def joined_members(
    members: Members, rows_N: NDArray[np.int64], most_gap: int, most_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Yield places in ``rows_N`` of members to be read by one request each, in the order of the shards.

    Args:
        members: locations; those of the rows are known.
        rows_N: rows of the index.
        most_gap: most bytes between two members of a request.
        most_bytes: most bytes from the first to the last one, where there are several.
    """
    if not len(rows_N):
        return
    shard_N, offset_N = members.shard[rows_N], members.offset[rows_N]
    order_N = np.lexsort((offset_N, shard_N))
    shard_N, offset_N = shard_N[order_N], offset_N[order_N]
    end_N = offset_N + members.size[rows_N][order_N]
    apart_N = (shard_N[1:] != shard_N[:-1]) | (offset_N[1:] - end_N[:-1] > most_gap)
    first = 0
    for index in range(1, len(order_N) + 1):
        if index == len(order_N) or apart_N[index - 1] or end_N[index] - offset_N[first] > most_bytes:
            yield order_N[first:index]
            first = index
