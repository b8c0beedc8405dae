"""Memory of NCCL's communicators, by estimate; imports no torch."""

CONNECTION_BYTES = 32 * 12 * 2**20
"""Buffers of a communicator for each other rank that it is connected to, at most: 10 + 2 MiB for each of 32 channels.

By a log of NCCL's allocations on one node (NVIDIA/nccl, issue 1685); no GPU of ours has measured it. NCCL takes fewer
channels between nodes, and `NCCL_MAX_NCHANNELS` lowers them.
"""


def all_to_all_bytes(ranks: int) -> int:
    """Return the memory of a communicator in which every pair of ranks is connected, at most."""
    return CONNECTION_BYTES * (ranks - 1)


def ring_bytes(ranks: int) -> int:
    """Return the memory of a communicator whose ranks are connected as a ring, at most."""
    return CONNECTION_BYTES * min(ranks - 1, 2)
