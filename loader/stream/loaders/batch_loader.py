"""Loader of single batches, for training loops that count batches and average over them."""

from collections.abc import Callable
from typing import Any

import torch

from reelweave.loader.batch import Batch, Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.lengths import batches_of_epoch
from reelweave.loader.stream.loaders.epoch_loader import EpochLoader, Start
from reelweave.loader.stream.video_stream import VideoStream


class BatchLoader(EpochLoader[Microbatch | Pack]):
    """Single batches of one rank, equally many on all ranks, in the place of a DataLoader; one pass is one epoch.

    Each `microbatches` of them are one optimizer step. Multiply the mean loss of a batch by `Batch.average_weight` in
    loops that average gradients over ranks and over the batches of a step. Within a step the state is that of the
    step's beginning. `len` is the number of this rank's batches in the epoch.

    Args:
        stream: stream of this rank, with ``regime="slot"`` or one microbatch a step.
        convert: makes of a batch what the loop expects, such as a dict of tensors; None yields batches as they are.
        device: device of the tensors; None leaves them where they are.
        processes: number of worker processes that read and decode; 0 uses threads of this process.
        start: start method of worker processes; None is the platform's default.
        repeats: True for evaluation: every pass begins where the stream stands now, with the same samples and frames.

    Raises:
        UsageError: an argument has a wrong type, ranks have different numbers of batches in a step, or worker
            processes were requested for a stream that ranks read together.
    """

    def __init__(
        self,
        stream: VideoStream,
        convert: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        processes: int = 0,
        start: Start | None = None,
        repeats: bool = False,
    ) -> None:
        super().__init__(stream, processes, start, repeats)
        config = stream.config
        if stream.world_size > 1 and config.microbatches > 1 and config.regime != "slot":
            raise UsageError(
                f"with regime={config.regime} ranks have different numbers of batches in a step, so a loop that counts"
                " batches would mix steps: set regime: slot in the stream's configuration, or use a StepLoader"
            )
        self._convert, self._device = convert, device

    def __next__(self) -> Any:
        """Return the next batch, of whatever epoch, as an endless iterator of micro-batches has it.

        Raises:
            StopIteration: the stream's epochs are over.
        """
        return next(iter(self))

    def _next_item(self) -> Microbatch | Pack | None:
        return next(self._read(), None)

    def _last_batch(self, item: Microbatch | Pack) -> Batch:
        return item

    def _count_items(self) -> int:
        stream = self.stream
        return batches_of_epoch(stream.cursor.plans, stream.config, self._begins_at or stream.cursor.position)

    def _yielded(self, item: Microbatch | Pack) -> Any:
        if self._device is not None:
            item = item.to(self._device, non_blocking=True)
        return item if self._convert is None else self._convert(item)
