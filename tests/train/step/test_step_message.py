"""What ranks exchange at the end of a step."""

import torch

from reelweave.loader.batch import ReadCounts
from reelweave.train.checkpoint.saver import SaveProgress
from reelweave.train.distributed.world import World
from reelweave.train.measure.step_times import RankTimes
from reelweave.train.measure.timings import PARTS
from reelweave.train.step.message import StepMessage
from reelweave.train.step.step_losses import LossSums


def message(rank: int, ranks: int) -> StepMessage:
    first = 100.0 * rank
    spent = dict(zip(PARTS, torch.arange(first, first + len(PARTS)).tolist(), strict=True))
    return StepMessage(
        losses=LossSums(*(first + number for number in range(6))),
        stops=float(rank == 1),
        checkpoint=SaveProgress(done=1.0, failed=float(rank == 2)),
        reads=ReadCounts(rank, 10, 2),
        clock=RankTimes(World(rank, ranks, torch.device("cpu"))).own(spent),
    )


def test_sums_of_the_numbers_are_the_message_of_all_ranks():
    own = [message(rank, 3) for rank in range(3)]
    assert [StepMessage.from_numbers(one.numbers()) for one in own] == own
    total = StepMessage.from_numbers(
        [sum(column) for column in zip(*(one.numbers() for one in own), strict=True)]
    )
    assert total.losses == LossSums(300.0, 303.0, 306.0, 309.0, 312.0, 315.0)
    assert (total.stops, total.checkpoint) == (1.0, SaveProgress(3.0, 1.0))
    assert total.reads == ReadCounts(3, 30, 6)
    at = PARTS.index("sync")
    assert total.clock.sync_s == [at, 100.0 + at, 200.0 + at]
    assert total.clock.mean_s["data"] == 100.0


def test_a_rank_sends_two_numbers_more_for_each_further_rank():
    sizes = [len(message(0, ranks).numbers()) for ranks in (2, 3, 9)]
    assert [size - sizes[0] for size in sizes] == [0, 2, 14]
