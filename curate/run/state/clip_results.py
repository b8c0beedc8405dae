"""Clips of closed sources, and the results of stages over them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from reelweave.curate.config import earlier_digests
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import Mask, column, filter_rows
from reelweave.curate.run.tables.judge import judge_clips
from reelweave.curate.run.tables.results import StageResults
from reelweave.curate.source_pass.cut_source import STAGE as CUT
from reelweave.curate.source_pass.tasks import ClipTask

Results = Mapping[str, pa.Table]
"""Results of stages by name, a row for each clip; see `reelweave.curate.run.tables.results`."""

IDENTITY = ("source", "segment", "key", "sha256")
"""Columns that say whose a clip is, of which segment, and of which bytes."""


class ClipResults:
    """Clips and their results, from the ledger and the workers of this run; see `reelweave.curate.run.tables`.

    Args:
        inputs: Inputs of the run.

    Attributes:
        closed: Clips of closed sources.
        earlier_cuts: Revision by digest of the configuration of the cut under earlier revisions of the code.
    """

    def __init__(self, inputs: RunInputs) -> None:
        self._inputs = inputs
        self.earlier_cuts = earlier_digests(inputs.cut.config)
        digests = set(inputs.ledger.entries.fingerprints(CUT))
        earlier = [digest for digest in self.earlier_cuts if digest in digests]
        self.closed = ClosedSources(inputs.ledger, inputs.cut.fingerprint, inputs.listed, earlier)
        self._by_stage = {
            stage.name: StageResults(
                inputs.ledger, stage.name, stage.fingerprint, self.closed.partitions, stage.earlier
            )
            for stage in inputs.stages
        }

    def add(self, task: ClipTask) -> None:
        """Add the results that workers of this run made for a task."""
        for stage in self._inputs.stages:
            if stage.name in task.made:
                self._by_stage[stage.name].add(stage.identity(task), task.found[stage.name])

    def forget_older(self) -> None:
        """Count clips as not done of which an earlier revision of a stage's code alone has a result."""
        for results in self._by_stage.values():
            results.forget_older()

    def forget_faults(self) -> None:
        """Count clips that failed as not done."""
        for results in self._by_stage.values():
            results.forget_faults()

    def older_ids(self, stage: ClipStage) -> pa.Array:
        """Return the identities of which an earlier revision of a stage's code alone has a result."""
        return self._by_stage[stage.name].older

    def find(
        self, partition: int, clips: pa.Table, stages: Sequence[ClipStage] | None = None
    ) -> dict[str, pa.Table]:
        """Return the results of all stages, or of some and those that they build on, for clips of a partition."""
        results: dict[str, pa.Table] = {}
        for stage in self._inputs.stages if stages is None else stages:
            results[stage.name] = self._by_stage[stage.name].find(
                partition, stage.identity.of_clips(clips, results, self.closed)
            )
        return results

    def place(self) -> None:
        """Put results that came since the last call beside their clips."""
        stages = self._inputs.stages

        def identities(at: int) -> Iterator[pa.Array]:
            for partition in range(self.closed.partitions):
                clips = self.closed.clips(partition).select(IDENTITY)
                results = self.find(partition, clips, stages[:at])
                yield stages[at].identity.of_clips(clips, results, self.closed)

        for at, stage in enumerate(stages):
            self._by_stage[stage.name].place(self.closed.version, partial(identities, at))

    def clips_of(self, partition: int, selected: Mask) -> pa.Table:
        """Return the clips of a partition's sources that a mask over all sources wants."""
        clips = self.closed.clips(partition)
        return filter_rows(clips, selected[column(clips, "source").to_numpy()])

    def judge(self, clips: pa.Table, results: Results) -> pa.Table:
        """Return clips in their state after their own scores and results."""
        judge = self._inputs.judge
        return judge_clips(clips, results, judge.filters, judge.shard, judge.scores)
