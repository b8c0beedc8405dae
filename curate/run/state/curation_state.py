"""State of a curation: all that is known of its sources and clips, the tasks that are left, and what they give."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.state.clip_results import ClipResults
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.state.samples import Samples
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.state.todo import Todo
from reelweave.curate.run.state.verdict import Verdict
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.dataset import Dataset


@dataclass(frozen=True)
class CurationState:
    """Everything known of every source and clip, from the ledger, the dataset and the workers of this run.

    Clips are rows of tables; see `reelweave.curate.run.tables`.

    Attributes:
        inputs: What the run begins with.
        results: Clips of closed sources, and the results of stages over them.
        stored: Where clips and their arrays lie.
        todo: What is left to do.
        verdict: State of every span.
        samples: Kept clips as samples of shards.
    """

    inputs: RunInputs
    results: ClipResults
    stored: StoredClips
    todo: Todo
    verdict: Verdict
    samples: Samples

    @staticmethod
    def of(
        config: CurateConfig,
        ledger: Ledger,
        sources: Iterable[SourceRef],
        dataset: Dataset | None,
        stages: Sequence[ModelStage],
        models: Mapping[str, str],
    ) -> "CurationState":
        """Return the state of a run before its first task.

        Args:
            config: Configuration of all stages.
            ledger: Entries of this run and of earlier ones.
            sources: All sources of the input.
            dataset: The present revision; None where nothing is published.
            stages: Stages over clips that the configuration asks for, from
                `reelweave.curate.run.stages.model_stages.model_stages`.
            models: Identities of their models, from `reelweave.curate.run.stages.model_stages.model_digests`.
        """
        inputs = RunInputs.of(config, ledger, sources, dataset, stages, models)
        results = ClipResults(inputs)
        stored = StoredClips(inputs, results.closed)
        bases = inputs, results, stored
        return CurationState(*bases, Todo(*bases), Verdict(*bases), Samples(*bases))
