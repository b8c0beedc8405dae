"""Inputs of a curation run: configuration, sources, stages, and the present revision of the dataset."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.stages.model_stages import judge_of
from reelweave.curate.run.tables.columns import Mask
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import TakeDowns
from reelweave.loader.dataset import Dataset


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run, which stay as they are.

    Attributes:
        config: Configuration of all stages.
        ledger: Entries of this run and of earlier ones.
        dataset: The present revision; None where nothing is published.
        listed: All sources, sorted by URI; clips name them by their index here.
        sources: Sources that were not taken down, by URI, in the order of the inputs.
        take_downs: Permanent take-downs of the dataset.
        cut: Function that cuts one source.
        judge: Early exit of clips that thresholds reject.
        stages: Stages over clips as runners call them.
        model_stages: The same as the configuration asks for them, by name.
    """

    config: CurateConfig
    ledger: Ledger
    dataset: Dataset | None
    listed: Sequence[SourceRef]
    sources: Mapping[str, SourceRef]
    take_downs: TakeDowns
    cut: CutSource
    judge: Judge
    stages: Sequence[ClipStage]
    model_stages: Mapping[str, ModelStage]

    @staticmethod
    def of(
        config: CurateConfig,
        ledger: Ledger,
        sources: Iterable[SourceRef],
        dataset: Dataset | None,
        stages: Sequence[ModelStage],
        models: Mapping[str, str],
    ) -> "RunInputs":
        """Derive the inputs of a run.

        Args:
            config: Configuration of all stages.
            ledger: Entries of this run and of earlier ones.
            sources: All sources of the input.
            dataset: The present revision; None where nothing is published.
            stages: Stages over clips that the configuration asks for, from
                `reelweave.curate.run.stages.model_stages.model_stages`.
            models: Identities of their models, from `reelweave.curate.run.stages.model_stages.model_digests`.
        """
        by_uri = {source.uri: source for source in sources}
        removals = dataset.manifest.removals if dataset is not None else ()
        take_downs = TakeDowns(tuple(removals)).of_older_names(by_uri)
        source_config, judge = config.source_stage(), judge_of(stages, config)
        return RunInputs(
            config=config,
            ledger=ledger,
            dataset=dataset,
            listed=[by_uri[uri] for uri in sorted(by_uri)],
            sources={uri: source for uri, source in by_uri.items() if uri not in take_downs.sources},
            take_downs=take_downs,
            cut=CutSource(source_config, config.storage, ledger, config_digest(source_config), take_downs),
            judge=judge,
            stages=[stage.clip_stage(ledger, models, judge) for stage in stages],
            model_stages={stage.name: stage for stage in stages},
        )

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
        return self.stages if self.config.run.caption_while_cutting else self.earlier

    @property
    def vectors(self) -> str | None:
        """Name of the stage that makes the embeddings; None where no model does."""
        return next((stage.name for stage in self.model_stages.values() if stage.makes_vectors), None)

    def select_sources(self, chosen: Set[str]) -> Mask:
        """Return which sources are chosen and were not taken down."""
        return np.array([uri in chosen and uri in self.sources for uri in self.uris], bool)
