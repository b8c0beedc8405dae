"""Early exit of clips that thresholds reject, whatever later stages would say."""

from collections.abc import Mapping
from dataclasses import dataclass

from reelweave.curate.config import ShardConfig
from reelweave.curate.filters import FilterConfig
from reelweave.curate.ledger.records import ClipResult, Record
from reelweave.curate.run.clip_verdict import judge_record
from reelweave.curate.source_pass.tasks import ClipTask


@dataclass(frozen=True)
class Judge:
    """Early-exit predicate: True while no threshold rejects a clip, so that rejected clips skip the remaining models.

    Attributes:
        filters: Thresholds.
        shard: Splits and bins of clips that are kept.
        scores: Names of the scores that each stage over clips writes; their thresholds wait for it.
    """

    filters: FilterConfig
    shard: ShardConfig
    scores: Mapping[str, tuple[str, ...]]

    def __call__(self, task: ClipTask) -> bool:
        """Return whether the clip, with the results so far, would be kept."""
        return self.judge(task.record, task.found).state == "kept"

    def judge(self, record: Record, results: Mapping[str, ClipResult]) -> Record:
        """Return the record after its results; see `reelweave.curate.run.clip_verdict.judge_record`."""
        return judge_record(record, results, self.filters, self.shard, self.scores)
