"""Kept clips of a curation as samples of shards, with the embeddings that its configuration names."""

import numpy as np
import pyarrow as pa

from reelweave.curate.run.stages.text_embed_stage import TEXT_EMBED
from reelweave.curate.run.state.clip_results import ClipResults, Results
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.columns import equal, filter_rows
from reelweave.curate.run.tables.results import packed_arrays
from reelweave.curate.run.tables.samples import samples_of, vector_column


class Samples:
    """Converter of kept clips to samples of shards.

    Args:
        inputs: Inputs of the run.
        results: Clips of closed sources, and their results.
        stored: Where clips and their arrays lie.
        embeds: Whether samples have embeddings, if only those of their look; see `EmbedConfig.backend`.
    """

    def __init__(self, inputs: RunInputs, results: ClipResults, stored: StoredClips, embeds: bool) -> None:
        self._inputs, self._results, self._stored, self._embeds = inputs, results, stored, embeds

    def of_clips(self, partition: int, clips: pa.Table) -> pa.Table:
        """Return the kept clips of a partition as samples of shards; see `reelweave.curate.run.tables.samples`."""
        clips = filter_rows(clips, equal(clips, "state", "kept"))
        locations = self._stored.locate(clip_ids(clips))
        needed = {self._inputs.vectors, TEXT_EMBED} & {stage.name for stage in self._inputs.stages}
        results = self._results.find(partition, clips) if needed else {}
        embeddings = self._embeddings(clips, results)
        return samples_of(clips, self._inputs.listed, locations, embeddings, results.get(TEXT_EMBED))

    def _embeddings(self, clips: pa.Table, results: Results) -> pa.Array:
        """Return the video embedding of each clip, of the backend that the configuration names."""
        if (stage := self._inputs.vectors) is not None:
            return vector_column(*packed_arrays(results[stage]))
        if not self._embeds:
            return vector_column(np.zeros((len(clips), 1), np.float16), np.zeros(len(clips), bool))
        rows = self._stored.find_arrays(clips)
        return vector_column(self._stored.arrays.read_stored(rows), rows >= 0)
