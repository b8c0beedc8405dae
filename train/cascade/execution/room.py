"""Which samples' handoffs lie on a rank, and until when."""

from collections.abc import Mapping

from train.cascade.execution.channel import Sent


class Room:
    """What samples take of a rank's memory.

    Args:
        sizes: bytes of each sample here.
        ends: the place of each sample's DiT in the order.
        limit: bytes at once; None: any number.

    Attributes:
        used: bytes.
        peak: the most so far.
    """

    def __init__(self, sizes: Mapping[int, int], ends: Mapping[int, int], limit: int | None) -> None:
        self._sizes, self._ends, self._limit = sizes, ends, limit
        self._sent: dict[int, list[Sent]] = {}
        self._through: set[int] = set()  # samples that wait for their messages alone
        self.used = self.peak = 0

    def take(self, sample: int) -> None:
        """Gives a sample its room. Where there is none, waits for messages of samples that are through here.

        The order has room for those that are not through anywhere; so of the others some DiT comes before this place,
        and is run whatever this rank does.
        """
        size = self._sizes.get(sample, 0)
        for done in [one for one in self._through if all(sent.done() for sent in self._sent[one])]:
            self._leave(done)
        while self._limit is not None and self.used + size > self._limit and self._through:
            self._leave(min(self._through, key=self._ends.__getitem__))
        self._sent[sample] = []
        self.used += size
        self.peak = max(self.peak, self.used)

    def sends(self, sample: int, sent: Sent) -> None:
        """A message of a sample has been posted."""
        self._sent[sample].append(sent)

    def ends(self, sample: int) -> None:
        """This rank has run all that it runs of a sample."""
        self._through.add(sample)

    def clear(self) -> None:
        """Waits for all messages of samples that are through."""
        for sample in sorted(self._through, key=self._ends.__getitem__):
            self._leave(sample)

    def _leave(self, sample: int) -> None:
        for sent in self._sent.pop(sample):
            sent.wait()
        self._through.remove(sample)
        self.used -= self._sizes.get(sample, 0)
