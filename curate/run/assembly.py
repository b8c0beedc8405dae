"""Assembly of a curation run: each component receives its own part of the configuration, which ends here."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reelweave.curate.caption import availability as caption_availability
from reelweave.curate.caption.camera_terms import CAMERA_SCORES
from reelweave.curate.config import CurateConfig, config_digest, earlier_digests
from reelweave.curate.filters import check_ocr
from reelweave.curate.ledger.digest import digest_of
from reelweave.curate.ledger.known_sources import as_known, join_runs
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.models.custom.configured import stage_class
from reelweave.curate.run.outlook.work import ContentChange
from reelweave.curate.run.reference_sets import ReferenceSets, embedding_of
from reelweave.curate.run.stages.caption_stage import CaptionStage
from reelweave.curate.run.stages.copies import Copies
from reelweave.curate.run.stages.custom_stages import CustomModelStage, stage_facts, stage_name
from reelweave.curate.run.stages.embed_stage import EmbedStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.match_stage import MatchStage
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.stages.model_stages import model_digests
from reelweave.curate.run.stages.text_embed_stage import TextEmbedStage
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.state.run_inputs import RunInputs
from reelweave.curate.shots import check_detector
from reelweave.curate.source_pass.cut_source import STAGE as CUT
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef, list_sources, redact_input
from reelweave.curate.takedown.takedown import TakeDowns
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.loader.text import pluralize


@dataclass(frozen=True)
class CurationRequest:
    """Curation that a call asks for, before any work.

    Attributes:
        ledger: Ledger of the output.
        dataset: Present revision; None where nothing is published.
        inputs: Inputs of all runs, as texts.
        sources: Their sources.
        stages: Stages over clips.
        models: Identities of their models.
        config: Configuration of the manifest.
        revisions: Revisions of the code of stages that are no entries of the ledger, without those that are 0.
        earlier: Fingerprints of each stage under earlier revisions of its code.
        notes: Sentences for the person who runs this.
    """

    ledger: Ledger
    dataset: Dataset | None
    inputs: Sequence[str]
    sources: Sequence[SourceRef]
    stages: Sequence[ModelStage]
    models: Mapping[str, str]
    config: Mapping[str, Any]
    revisions: Mapping[str, int]
    earlier: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]

    @property
    def change(self) -> ContentChange:
        """Change of the settings of the present revision."""
        before = None if self.dataset is None else self.dataset.manifest.config.get("curate", {})
        return ContentChange(before, self.config["curate"], self.revisions)


def resolve_request(
    inputs: Sequence[str], storage: Storage, config: CurateConfig, update: bool
) -> CurationRequest:
    """Return the request of a call, with its sources and models, as the holder of the output's lease.

    Raises:
        UsageError: no source is found, or the output holds another dataset.
    """
    ledger = Ledger(storage)
    dataset = Dataset(storage) if storage.stat(MANIFEST) is not None else None
    _check_ours(storage, ledger, dataset)
    # Sources of the inputs; with an update also those of earlier runs.
    listing_notes: list[str] = []
    sources: Sequence[SourceRef] = list_sources(inputs, config.storage, listing_notes.append)
    notes: tuple[str, ...] = ()
    sources, silent = as_known(ledger, sources)
    if silent:
        listing_notes.append(
            f"{pluralize(silent, 'source')} whose web server gives no answer now: meant as an earlier run found it"
        )
    inputs = [redact_input(text) for text in inputs]
    if dataset is not None and update:
        inputs, sources, notes = join_runs(ledger, inputs, sources)
    # What decides the dataset goes into its manifest: a later call compares it.
    settings: dict[str, Any] = {
        "curate": config.content(),
        "inputs": list(inputs),
        "sources": _sources_digest(sources),
    }
    if reference_digests := reference_sets(config).fingerprints():
        settings["others"] = reference_digests
    stages = model_stages(config)
    if models := model_digests(stages, ledger):
        settings["models"] = models
    if config.stages:
        settings["stages"] = {name: stage_facts(stage) for name, stage in config.stages.items()}
    # What earlier revisions of the code called the same settings.
    earlier = {CUT: tuple(earlier_digests(config.source_stage()))}
    earlier |= {stage.name: stage.fingerprints(models)[1] for stage in stages}
    return CurationRequest(
        ledger=ledger,
        dataset=dataset,
        inputs=inputs,
        sources=sources,
        stages=stages,
        models=models,
        config=settings,
        revisions=config.revisions(),
        earlier=earlier,
        notes=(*listing_notes, *notes),
    )


def begin_state(config: CurateConfig, request: CurationRequest) -> CurationState:
    """Return the state of a run before its first task."""
    return curation_state(
        config, request.ledger, request.sources, request.dataset, request.stages, request.models
    )


def curation_state(
    config: CurateConfig,
    ledger: Ledger,
    sources: Iterable[SourceRef],
    dataset: Dataset | None,
    stages: Sequence[ModelStage],
    models: Mapping[str, str],
) -> CurationState:
    """Return the state of a curation before its first task.

    Args:
        config: Configuration of all stages.
        ledger: Entries of this run and of earlier ones.
        sources: All sources of the input.
        dataset: The present revision; None where nothing is published.
        stages: Stages over clips, from `model_stages`.
        models: Identities of their models, from `reelweave.curate.run.stages.model_stages.model_digests`.
    """
    # Sources by name, without those that were taken down.
    by_uri = {source.uri: source for source in sources}
    removals = dataset.manifest.removals if dataset is not None else ()
    take_downs = TakeDowns(tuple(removals)).of_older_names(by_uri)
    listed = [by_uri[uri] for uri in sorted(by_uri)]
    # What works on sources and on clips.
    source_config, judge = config.source_stage(), judge_of(config, stages)
    inputs = RunInputs(
        ledger=ledger,
        dataset=dataset,
        listed=listed,
        sources={uri: source for uri, source in by_uri.items() if uri not in take_downs.sources},
        take_downs=take_downs,
        cut=CutSource(source_config, config.storage, ledger, config_digest(source_config), take_downs),
        judge=judge,
        stages=[stage.clip_stage(ledger, models, judge) for stage in stages],
        model_stages={stage.name: stage for stage in stages},
        caption_while_cutting=config.run.caption_while_cutting,
    )
    copies = Copies(listed, config.captions, config.storage, dataset)
    return CurationState.of(inputs, copies, reference_sets(config), config.embed.backend != "none")


def model_stages(config: CurateConfig) -> tuple[ModelStage, ...]:
    """Return the stages over clips, the cheapest first; the expensive ones wait until duplicates are known."""
    run = config.run
    captions = CaptionStage(
        config.captions, config.storage, run.model_cpus, run.caption_gpus, _camera_stage(config)
    )
    custom = [
        CustomModelStage(name, stage_config, captions.after_dedup, config.embed.backend == stage_name(name))
        for name, stage_config in config.stages.items()
    ]
    stages: list[ModelStage] = [] if captions.has_model else [captions]
    match: list[ModelStage] = []
    if config.embed.backend == "open_clip":
        embed = EmbedStage(config.embed, config.aesthetic, run.model_cpus, run.embed_gpus)
        stages.append(embed)
        if config.captions.match or config.filters.min_caption_match is not None:
            match.append(MatchStage(config.embed, embed, captions.has_model))
    stages += [] if captions.has_model else match
    stages += [stage for stage in custom if not stage.after_dedup]
    if captions.has_model:
        stages += [captions, *captions.variants(), *match]
    stages += [stage for stage in custom if stage.after_dedup]
    if config.text_embed.model is not None:
        stages.append(TextEmbedStage(config.text_embed, run.model_cpus, run.text_embed_gpus))
    return tuple(stages)


def _camera_stage(config: CurateConfig) -> str:
    """Return the name of the stage before captions that measures the movement of the camera; "" without one."""
    measuring = (
        stage_name(name)
        for name, stage in config.stages.items()
        if not stage.after_dedup and set(CAMERA_SCORES) <= stage_class(stage.code).scores.keys()
    )
    return next(measuring, "")


def judge_of(config: CurateConfig, stages: Iterable[ModelStage]) -> Judge:
    """Return the predicate of clips that are wanted still."""
    return Judge(config.filters, config.shard, {stage.name: stage.scores for stage in stages if stage.scores})


def reference_sets(config: CurateConfig) -> ReferenceSets:
    """Return the datasets that clips are compared with."""
    stages = {name: stage_facts(stage) for name, stage in config.stages.items()}
    embedding = embedding_of({"curate": config.content(), "stages": stages})
    return ReferenceSets(config.dedup, config.storage, embedding)


def check_models(config: CurateConfig, stages: Sequence[ModelStage]) -> dict[str, str]:
    """Check before any work that all models are available; return their versions for the manifest.

    Raises:
        UsageError: one is not available; the message says what to do.
    """
    check_ocr(config.scores)
    check_detector(config.shots)
    return {name: version for stage in stages for name, version in stage.check().items()}


def check_model_paths(config: CurateConfig) -> None:
    """Check the files of models before anything else: no source is listed, no file is hashed, no library loaded.

    Raises:
        UsageError: A folder or file is missing, or holds no model of a known kind.
    """
    if config.aesthetic.weights is not None and config.embed.backend != "open_clip":
        raise UsageError("aesthetic.weights needs the pictures' embeddings: set embed.backend=open_clip too")
    if config.filters.min_caption_match is not None and config.embed.backend != "open_clip":
        raise UsageError(
            "filters.min_caption_match needs a model of pictures and words: set embed.backend=open_clip, embed.model"
            " and embed.pretrained"
        )
    for stage in model_stages(config):
        stage.check_model_paths()


def describe_missing(config: CurateConfig) -> tuple[str, ...]:
    """Return one sentence for each model that the configuration leaves out, for the person who runs this."""
    reason = caption_availability(config.captions)
    return (reason,) if reason else ()


def _check_ours(storage: Storage, ledger: Ledger, dataset: Dataset | None) -> None:
    """Raise a `UsageError` where the output holds tars that no curation wrote: ours would mix with them."""
    begun = dataset is not None or ledger.notes.read("config") is not None
    stray = None if begun else next(storage.list("shards/"), None)
    manifest = None if dataset is None else dataset.manifest
    if stray is not None or (manifest and (manifest.foreign or manifest.latents)):
        what = "a dataset" if stray is None else f"{stray.path}, a file"
        raise UsageError(f"{storage.root} holds {what} that no curation wrote; choose another --out")


def _sources_digest(sources: Sequence[SourceRef]) -> str:
    # The list that named a source says nothing of its bytes.
    rows = (source.to_stored() for source in sources)
    return digest_of(
        json.dumps({k: v for k, v in row.items() if k != "listed_in"}, sort_keys=True) for row in rows
    )
