"""Stages over clips that a configuration asks for: embeddings, captions, text embeddings, and those of users."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from reelweave.curate.caption import availability as caption_availability
from reelweave.curate.config import CurateConfig
from reelweave.curate.filters import check_ocr
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.pipeline import Stage
from reelweave.curate.run.stages.caption_stage import CaptionStage
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.custom_stages import CustomModelStage, stage_name
from reelweave.curate.run.stages.embed_stage import EmbedClips, EmbedStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_files import digests_of
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.stages.text_embed_stage import TextEmbedStage
from reelweave.curate.shots import check_detector
from reelweave.curate.source_pass.tasks import CurationTask
from reelweave.loader.errors import UsageError


def model_stages(config: CurateConfig) -> tuple[ModelStage, ...]:
    """Return the stages, the cheapest first; the expensive ones wait until duplicates are known."""
    run = config.run
    captions = CaptionStage(config.captions, config.storage, run.model_cpus, run.caption_gpus)
    custom = [
        CustomModelStage(name, stage_config, captions.after_dedup, config.embed.backend == stage_name(name))
        for name, stage_config in config.stages.items()
    ]
    stages: list[ModelStage] = [] if captions.has_model else [captions]
    if config.embed.backend == "open_clip":
        stages.append(EmbedStage(config.embed, config.aesthetic, run.model_cpus, run.embed_gpus))
    stages += [stage for stage in custom if not stage.after_dedup]
    if captions.has_model:
        stages.append(captions)
    stages += [stage for stage in custom if stage.after_dedup]
    if config.text_embed.model is not None:
        stages.append(TextEmbedStage(config.text_embed, run.model_cpus, run.text_embed_gpus))
    return tuple(stages)


def model_digests(stages: Iterable[ModelStage], ledger: Ledger) -> dict[str, str]:
    """Return the identity of each model of stages, by its key in the configuration.

    Args:
        stages: Stages over clips.
        ledger: Where the hash of each file is kept.

    Raises:
        UsageError: a model is neither on this machine nor on the hub.
    """
    return digests_of({key: model for stage in stages for key, model in stage.models.items()}, ledger)


def judge_of(stages: Iterable[ModelStage], config: CurateConfig) -> Judge:
    """Return the predicate of clips that are wanted still."""
    return Judge(config.filters, config.shard, {stage.name: stage.scores for stage in stages if stage.scores})


_WORKER_MB = 1000.0
"""Memory of a worker with a model beside its weights: PyTorch, transformers and the pictures of a batch."""

_PREPROCESSING_MB = 900.0
"""Memory of preprocessing by open_clip or a stage of a user's, which loads PyTorch."""

_RECORD_CPUS = 0.25
"""Share of a processor of a worker that writes small files, and so waits for the storage."""


def pipeline_stages(
    stages: Iterable[tuple[ClipStage, ModelStage]], gpus: float, worker_mb: float
) -> list[Stage[CurationTask]]:
    """Return stages as runners take them; those with a model keep their workers.

    Args:
        stages: Each stage as runners call it, and as the configuration asks for it.
        gpus: GPUs of the machine; without any, models run on processors.
        worker_mb: Memory of a worker that cuts, megabytes.
    """
    planned: list[Stage[CurationTask]] = []
    for stage, asked in stages:
        if not asked.has_model:
            planned.append(Stage(stage.name, stage))
            continue
        share = asked.gpus if gpus else 0.0
        # Files often hold 16 bits, which processors compute in 32.
        memory_mb = _WORKER_MB + asked.weights_mb * (1 if gpus else 2)
        model = Stage(
            stage.name,
            stage,
            asked.batch_clips,
            keeps=True,
            cpus=asked.cpus,
            gpus=share,
            memory_mb=memory_mb,
        )
        if share or asked.served:
            # Inputs are made by the workers that cut, where PyTorch is loaded beside what cutting takes.
            planned += split_for_gpu(stage, model, worker_mb + _PREPROCESSING_MB if asked.prepares else 0.0)
        else:
            planned.append(model)
    return planned


def split_for_gpu(
    stage: ClipStage, model: Stage[CurationTask], input_mb: float = 0.0
) -> list[Stage[CurationTask]]:
    """Return a stage in three: other processors make inputs ahead and record answers, so that a GPU need not wait.

    Args:
        stage: The stage.
        model: The same as runners take it, in one.
        input_mb: Megabytes of RAM of a worker that makes inputs.
    """
    if isinstance(stage.function, EmbedClips):
        stage.function.embedder.learn_preprocessing()
    return [
        Stage(f"{stage.name}.input", stage.prepare_tasks, memory_mb=input_mb),
        replace(model, function=stage.run_model),
        Stage(f"{stage.name}.record", stage.record, cpus=_RECORD_CPUS),
    ]


def check(config: CurateConfig, stages: Sequence[ModelStage]) -> dict[str, str]:
    """Check before any work that all models are available; return their versions for the manifest.

    Raises:
        UsageError: one is not available; the message says what to do.
    """
    check_ocr(config.scores)
    check_detector(config.shots)
    if config.aesthetic.weights is not None and config.embed.backend != "open_clip":
        raise UsageError("aesthetic.weights needs the pictures' embeddings: set embed.backend=open_clip too")
    return {name: version for stage in stages for name, version in stage.check().items()}


def availability(config: CurateConfig) -> tuple[str, ...]:
    """Return one sentence for each model that is not there, for the person who runs this."""
    reason = caption_availability(config.captions)
    return (reason,) if reason else ()
