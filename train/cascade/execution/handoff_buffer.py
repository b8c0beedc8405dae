"""Accounting of one rank's handoff buffer."""

from collections.abc import Mapping

from reelweave.train.cascade.execution.channel import PendingSend


class HandoffBuffer:
    """Handoff bytes of samples in one rank's memory.

    Args:
        sizes: bytes of each sample on this rank.
        ends: position of each sample's DiT in the order.
        limit: bytes at a time; None: no limit.

    Attributes:
        used: bytes in use.
        peak: peak of ``used``.
    """

    def __init__(self, sizes: Mapping[int, int], ends: Mapping[int, int], limit: int | None) -> None:
        self._sizes, self._ends, self._limit = sizes, ends, limit
        self._sent: dict[int, list[PendingSend]] = {}
        self._through: set[int] = set()  # samples with no work left but pending sends
        self.used = self.peak = 0

    def take(self, sample: int) -> None:
        """Reserve the bytes of a sample; if they do not fit, wait for sends of samples that are finished here.

        The order reserves space for samples that are unfinished on some rank. Of the others, a DiT before this
        place consumes
        the messages without help of this rank, so the wait ends.
        """
        size = self._sizes.get(sample, 0)
        for done in [sample for sample in self._through if all(sent.done() for sent in self._sent[sample])]:
            self._leave(done)
        while self._limit is not None and self.used + size > self._limit and self._through:
            self._leave(min(self._through, key=self._ends.__getitem__))
        self._sent[sample] = []
        self.used += size
        self.peak = max(self.peak, self.used)

    def sends(self, sample: int, sent: PendingSend) -> None:
        """Record a pending send of a sample."""
        self._sent[sample].append(sent)

    def ends(self, sample: int) -> None:
        """Mark a sample as finished on this rank."""
        self._through.add(sample)

    def clear(self) -> None:
        """Wait for all pending sends of finished samples."""
        for sample in sorted(self._through, key=self._ends.__getitem__):
            self._leave(sample)

    def _leave(self, sample: int) -> None:
        for sent in self._sent.pop(sample):
            sent.wait()
        self._through.remove(sample)
        self.used -= self._sizes.get(sample, 0)
