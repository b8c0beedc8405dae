"""Ranks that wait for the first one, in no collective."""

from datetime import timedelta

import torch
import torch.distributed as dist

from reelweave.loader.errors import UsageError
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import join
from reelweave.train.parallel.mesh import Ranks


def waiting() -> None:
    """A rank of three; the first one works alone, and then refuses."""
    with join("cpu") as world, count_sent_bytes() as sent:
        assert on_first(world, lambda: [7, "words"]) == [7, "words"]
        assert not sent.by_group, "the others wait in a collective, which a watchdog ends"
        on_first(world, _refuse)


def _refuse() -> None:
    raise UsageError("that file is no video")


def failing() -> None:
    """A rank of two; the first one fails in its work in a way that nobody has words for."""
    with join("cpu", lost_after_s=20.0) as world:
        on_first(world, _fail)


def _fail() -> None:
    raise ValueError("no words")


def timeouts() -> None:
    """A rank of four; every group that it makes has the run's timeout."""
    with join("cpu", collective_timeout_s=77.0) as world:
        ranks = Ranks.of(ParallelConfig(dp_shard=2, dp_replicate=2), world)
        groups = [dist.group.WORLD, ranks.along("dp_shard").group, ranks.context.ring]
        groups += [ranks.weights.get_group(name) for name in ("dp_replicate", "dp_shard", "tp")]
        for group in groups:
            options = group._get_backend(torch.device("cpu")).options
            assert options._timeout == timedelta(seconds=77), options._timeout
