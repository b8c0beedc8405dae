"""Check of a stream's rank against the processes that run."""

import logging

import torch.distributed as dist

_log = logging.getLogger(__name__)


def warn_of_other_ranks(rank: int, world_size: int) -> None:
    """Log a warning if processes seem to read each other's samples, as where the rank was forgotten.

    Args:
        rank: data-parallel rank of a stream that no model-parallel group shares.
        world_size: number of data-parallel ranks.
    """
    if not dist.is_available() or not dist.is_initialized():
        return
    process_rank, processes = dist.get_rank(), dist.get_world_size()
    if world_size == 1 < processes and process_rank == 0:
        _log.warning(
            "%d processes run, but this stream is that of one rank of one, so that each process reads every sample:"
            " pass rank and world_size to VideoStream, or a Share if they are one model-parallel group",
            processes,
        )
    elif world_size == processes and rank != process_rank:
        _log.warning(
            "process %d of %d reads the samples of rank %d, as where LOCAL_RANK was taken for the rank: pass"
            " torch.distributed.get_rank() to VideoStream",
            process_rank,
            processes,
            rank,
        )
