"""Samples that a run could not use, from `bad_samples.jsonl`."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from reelweave.pipelines.report.run.lines import records
from reelweave.train.loop.logs.record import BAD_SAMPLES

_MOST_SHOWN = 50
_MOST_COUNTED = 10_000  # different shards
_MOST_TEXT = 300  # characters of a reason


@dataclass(frozen=True)
class ReplacedSample:
    """Sample that another one replaced.

    Attributes:
        key: key of the sample.
        shard: path of its shard.
        reason: why it was replaced.
    """

    key: str
    shard: str
    reason: str


@dataclass(frozen=True)
class BadSamples:
    """Replaced samples of a run.

    Attributes:
        count: number of replacements, each pass over a sample anew.
        shards: the shards with most of them.
        last: the newest ones.
    """

    count: int
    shards: dict[str, int]
    last: list[ReplacedSample]


def read_bad_samples(run: Path) -> BadSamples:
    """Read which samples were replaced."""
    count, shards, last = 0, Counter[str](), list[ReplacedSample]()
    for record in records(run / BAD_SAMPLES):
        if record is None:
            continue
        sample = ReplacedSample(
            *(str(record.get(name, ""))[:_MOST_TEXT] for name in ("key", "shard", "reason"))
        )
        count += 1
        if sample.shard in shards or len(shards) < _MOST_COUNTED:
            shards[sample.shard] += 1
        last.append(sample)
        if len(last) > 2 * _MOST_SHOWN:
            del last[:-_MOST_SHOWN]
    return BadSamples(count, dict(shards.most_common(_MOST_SHOWN)), last[-_MOST_SHOWN:])
