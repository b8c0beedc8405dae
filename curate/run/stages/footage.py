"""Comparison of the footage of many pairs of clips, as tasks of a runner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from reelweave.curate.dedup.fingerprint import Match, overlap
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.clip_arrays import FingerprintPlace, Fingerprints
from reelweave.curate.run.runners.node_paths import output_paths
from reelweave.curate.run.runners.passes import Pass, run_pass
from reelweave.curate.run.runners.pipeline import Kind, Stage

MATCH = "dedup"
"""Name of the stage, for timings."""

MatchMany = Callable[[Sequence[tuple[FingerprintPlace, FingerprintPlace]], float], list[Match | None]]
"""Function from places of fingerprints, the kept clip's first, and a minimum overlap to the agreement of each pair."""

PAIRS_AT_ONCE = 65_536
"""Pairs of one pass: half a minute of one processor, against the seconds that Ray takes to start it."""

_PAIRS = 256  # of a task


@dataclass(frozen=True)
class PairsTask:
    """Some pairs of clips to compare.

    Attributes:
        number: Place among the tasks.
        pairs: Places of the fingerprints of each, the kept clip's first.
        min_overlap: Minimum share of the later clip that both must show.
        found: Agreement of each pair, once it is compared.
    """

    number: int
    pairs: tuple[tuple[FingerprintPlace, FingerprintPlace], ...]
    min_overlap: float
    found: tuple[Match | None, ...] = ()


class MatchFootage:
    """Function from pairs to their agreement.

    Args:
        ledger: Ledger that holds the fingerprints.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._fingerprints = Fingerprints(ledger)

    def __call__(self, tasks: Sequence[PairsTask]) -> Iterator[PairsTask]:
        """Yield each task with what was found."""
        read = self._fingerprints.read
        for task in tasks:
            matches = tuple(
                overlap(read(earlier), read(other), task.min_overlap) for earlier, other in task.pairs
            )
            yield replace(task, pairs=(), found=matches)


def match_many(
    pairs: Sequence[tuple[FingerprintPlace, FingerprintPlace]], min_overlap: float, ledger: Ledger, kind: Kind
) -> tuple[list[Match | None], Pass]:
    """Return the agreement of each pair, and the cost.

    Args:
        pairs: Places of the fingerprints of each pair, the kept clip's first.
        min_overlap: Minimum share of the later clip that both must show.
        ledger: Ledger that holds the fingerprints.
        kind: Name of the runner.
    """
    tasks = [
        PairsTask(index, tuple(pairs[start : start + _PAIRS]), min_overlap)
        for index, start in enumerate(range(0, len(pairs), _PAIRS))
    ]
    done: dict[int, PairsTask] = {}

    def take(task: PairsTask) -> None:
        done[task.number] = task

    needs = output_paths(ledger.storage)
    cost = run_pass("pairs", tasks, [Stage(MATCH, MatchFootage(ledger), needs=needs)], kind, take)
    return [match for index in range(len(tasks)) for match in done[index].found], cost
