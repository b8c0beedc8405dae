"""Stages over clips that a configuration asks for, as runners take them, and the identities of their models."""

from collections.abc import Iterable
from dataclasses import replace

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.pipeline import Stage
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.embed_stage import EmbedClips
from reelweave.curate.run.stages.joined_stage import JoinedStage, join_stages
from reelweave.curate.run.stages.model_files import digests_of
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.source_pass.tasks import CurationTask


def model_digests(stages: Iterable[ModelStage], ledger: Ledger) -> dict[str, str]:
    """Return the identity of each model of stages, by its key in the configuration.

    Args:
        stages: Stages over clips.
        ledger: Where the hash of each file is kept.

    Raises:
        UsageError: a model is neither on this machine nor on the hub.
    """
    return digests_of({key: model for stage in stages for key, model in stage.models.items()}, ledger)


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
    for stage, asked in join_stages(list(stages)):
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
    stage: ClipStage | JoinedStage, model: Stage[CurationTask], input_mb: float = 0.0
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
