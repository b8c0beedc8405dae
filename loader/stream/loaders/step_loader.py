"""Loader of whole optimizer steps, for training loops of other frameworks."""

from reelweave.loader.batch import Batch, Microbatch, Pack, Step
from reelweave.loader.stream.loaders.epoch_loader import EpochLoader


class StepLoader(EpochLoader[Step]):
    """Whole optimizer steps of one rank; one pass is one epoch, or the rest of one.

    All ranks have equally many steps. After each yielded step, the stream's position is behind that step, even if
    worker processes prefetch. A pass that was left continues with the next step. `len` is the number of steps.

    Args:
        stream: stream of this rank.
        processes: number of worker processes that read and decode; 0 uses threads of this process.
        start: start method of worker processes; None is the platform's default.
        repeats: True for evaluation: every pass begins where the stream stands now, with the same samples and frames.

    Raises:
        UsageError: an argument has a wrong type, or worker processes were requested for a stream that ranks
            read together.
    """

    def _next_item(self) -> Step | None:
        batches = list[Microbatch | Pack]()
        for batch in self._read():
            batches.append(batch)
            if batch.ends_step:
                return Step(tuple(batches))
        return None

    def _last_batch(self, item: Step) -> Batch:
        return item.batches[-1]

    def _count_items(self) -> int:
        return self.stream.steps_of_epoch(self._begins_at)
