"""Clips that other datasets hold already: older ones, and evaluation sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup import DedupClips, DedupConfig, Duplicate, Vectors, dedup, find_contaminated
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.models.embed import STAGES
from reelweave.curate.run.clip_arrays import ClipArrays
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.columns import column, places_in
from reelweave.curate.run.tables.kept import half_digests
from reelweave.curate.search.vectors import stored_vector
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig


@dataclass(frozen=True)
class ReferenceSets:
    """Datasets that ``dedup`` compares the clips of a run with.

    Attributes:
        config: Their addresses, and the thresholds of duplicates.
        storage: Storage that they are in.
        embedding: How the run's clips are embedded; see `embedding_of`.
    """

    config: DedupConfig
    storage: StorageConfig
    embedding: Sequence[object]

    @property
    def uris(self) -> tuple[str, ...]:
        """Addresses of the evaluation sets, then those of older datasets."""
        return (*self.config.evaluation, *self.config.older)

    def fingerprints(self) -> dict[str, str]:
        """Return a digest of each dataset, by URI.

        Raises:
            UsageError: there is none, or it cannot be compared with.
        """
        return {uri: self._open_dataset(uri).fingerprint for uri in self.uris}

    def find_known(self, clips: DedupClips) -> dict[str, tuple[str, Duplicate]]:
        """Return the stage and the twin of each clip that other datasets hold, by key.

        Clips of evaluation sets are found among all, clips of older datasets among new ones.

        Args:
            clips: Kept clips of the run.

        Raises:
            UsageError: a dataset cannot be compared with.
        """
        twins_by_key: dict[str, tuple[str, Duplicate]] = {}
        for uri in self.config.evaluation:
            for key, twin in find_contaminated(clips, self.clips_of(uri), self.config).items():
                twins_by_key.setdefault(key, ("dedup.evaluation", twin))
        for uri in self.config.older:
            reference = self.clips_of(uri)
            twins = dedup(clips.fresh(reference), self.config)
            theirs = (
                places_in(pa.array([twin.of for twin in twins.values()], pa.string()), reference.keys) >= 0
            )
            for (key, twin), known_there in zip(twins.items(), theirs.tolist(), strict=True):
                if known_there:
                    twins_by_key.setdefault(key, ("dedup.older", twin))
        return twins_by_key

    def clips_of(self, uri: str) -> DedupClips:
        """Return the samples of another dataset for deduplication; keys are ``URI#KEY``, unlike any of ours.

        Raises:
            UsageError: it is no dataset, or cannot be compared with.
        """
        dataset = self._open_dataset(uri)
        ledger = Ledger(dataset.storage)
        arrays = ClipArrays(ledger)
        arrays.read(ledger.blobs.array_names())
        samples = dataset.read_columns("index", ["key", "sha256", "source"]).combine_chunks()
        ids = clip_ids(samples)
        rows = arrays.find(ids)
        semantic = self.config.semantic.enabled
        return DedupClips(
            keys=pc.binary_join_element_wise(f"{uri}#", column(samples, "key"), ""),
            sha256=half_digests(column(samples, "sha256")),
            sources=column(samples, "source"),
            quality=np.zeros((len(samples), 0)),
            old=np.zeros(len(samples), bool),
            footage=Vectors.from_file(rows.astype(np.int32), arrays.vectors),
            embedding=Vectors.of(
                stored_vector(dataset, row) if semantic else None for row in range(len(samples))
            ),
            fingerprint=lambda row: (
                arrays.fingerprint(int(rows[row]), ids[row].as_py()) if rows[row] >= 0 else None
            ),
        )

    def _open_dataset(self, uri: str) -> Dataset:
        try:
            dataset = open_dataset(uri, self.storage)
        except RunError as error:
            raise UsageError(f"dedup.evaluation or dedup.older: {error}") from error
        if (
            self.config.perceptual.enabled
            and len(dataset)
            and not Ledger(dataset.storage).blobs.array_names()
        ):
            raise UsageError(
                f"{uri} has no fingerprints in its .ledger; curate that dataset again, or set"
                " dedup.perceptual.enabled=false"
            )
        if self.config.semantic.enabled and embedding_of(dataset.manifest.config) != self.embedding:
            raise UsageError(
                f"{uri} was embedded otherwise than `embed` asks for; embed both alike, or set"
                " dedup.semantic.enabled=false"
            )
        return dataset


def embedding_of(config: Mapping[str, object]) -> list[object]:
    """Return what a manifest's configuration says of the embeddings, also of a user's stage that made them."""
    curate = _inside(config, "curate")
    embed = curate.get("embed")
    name = str(_inside(curate, "embed").get("backend")).removeprefix(STAGES)
    return [embed, _inside(curate, "stages").get(name), _inside(config, "stages").get(name)]


def _inside(values: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}
