"""State of a curation: all that is known of its sources and clips, the tasks that are left, and what they give."""

from dataclasses import dataclass

from reelweave.curate.run.reference_sets import ReferenceSets
from reelweave.curate.run.stages.copies import Copies
from reelweave.curate.run.state.clip_results import ClipResults
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.state.samples import Samples
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.state.todo import Todo
from reelweave.curate.run.state.verdict import Verdict


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
    def of(inputs: RunInputs, copies: Copies, references: ReferenceSets, embeds: bool) -> "CurationState":
        """Return the state of a run before its first task.

        Args:
            inputs: What the run begins with.
            copies: See `Verdict`.
            references: See `Verdict`.
            embeds: See `Samples`.
        """
        results = ClipResults(inputs)
        stored = StoredClips(inputs, results.closed)
        bases = inputs, results, stored
        verdict = Verdict(*bases, copies, references)
        return CurationState(*bases, Todo(*bases), verdict, Samples(*bases, embeds))
