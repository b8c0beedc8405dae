"""Inputs of a curation run: sources, stages, and the present revision of the dataset."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.tables.columns import Mask
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import TakeDowns
from reelweave.loader.dataset import Dataset


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run, which stay as they are.

    Attributes:
        ledger: Entries of this run and of earlier ones.
        dataset: The present revision; None where nothing is published.
        listed: All sources, sorted by URI; clips name them by their index here.
        sources: Sources that were not taken down, by URI, in the order of the inputs.
        take_downs: Permanent take-downs of the dataset.
        cut: Function that cuts one source, with its configuration.
        judge: Early exit of clips that thresholds reject.
        stages: Stages over clips as runners call them.
        model_stages: The same as the configuration asks for them, by name.
        caption_while_cutting: Whether later stages run while sources are cut, too.
    """

    ledger: Ledger
    dataset: Dataset | None
    listed: Sequence[SourceRef]
    sources: Mapping[str, SourceRef]
    take_downs: TakeDowns
    cut: CutSource
    judge: Judge
    stages: Sequence[ClipStage]
    model_stages: Mapping[str, ModelStage]
    caption_while_cutting: bool

    @cached_property
    def uris(self) -> list[str]:
        """URIs of all sources, sorted."""
        return [source.uri for source in self.listed]

    @cached_property
    def removed(self) -> list[str]:
        """URIs of the sources that were taken down."""
        return [uri for uri in self.uris if uri in self.take_downs.sources]

    @cached_property
    def earlier(self) -> list[ClipStage]:
        """Stages before deduplication."""
        return [stage for stage in self.stages if not stage.after_dedup]

    @cached_property
    def later(self) -> list[ClipStage]:
        """Stages after deduplication."""
        return [stage for stage in self.stages if stage.after_dedup]

    @property
    def beside(self) -> Sequence[ClipStage]:
        """Stages that run while sources are cut: the earlier ones, or all."""
        return self.stages if self.caption_while_cutting else self.earlier

    @property
    def vectors(self) -> str | None:
        """Name of the stage that makes the embeddings; None where no model does."""
        return next((stage.name for stage in self.model_stages.values() if stage.makes_vectors), None)

    def select_sources(self, chosen: Set[str]) -> Mask:
        """Return which sources are chosen and were not taken down."""
        return np.array([uri in chosen and uri in self.sources for uri in self.uris], bool)
