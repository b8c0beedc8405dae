"""Stages over clips that a configuration asks for: embeddings, captions, text embeddings."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption import CaptionConfig, Captioner
from reelweave.curate.caption import availability as caption_availability
from reelweave.curate.caption.captioner import CaptionInput
from reelweave.curate.caption.types import NO_CAPTION, Caption
from reelweave.curate.caption.written import find_written
from reelweave.curate.config import CurateConfig, ShardConfig, config_digest, earlier_stage_digests
from reelweave.curate.filters import FilterConfig, check_ocr
from reelweave.curate.ledger.ledger import Ledger, digest
from reelweave.curate.ledger.records import ClipEmbedding, ClipResult, PackedArray, Record, TextEmbedding
from reelweave.curate.models.aesthetic import AestheticHead
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.custom.configured import stage_class
from reelweave.curate.models.device import pick_device
from reelweave.curate.models.embed import STAGES, ClipEmbedder, Embedding, EmbedInput
from reelweave.curate.models.text_embed import Array, TextEmbedder
from reelweave.curate.run.runners.pipeline import Stage
from reelweave.curate.run.stages.clip_stages import (
    ClipStage,
    Identity,
    ReadClip,
    caption_identity,
    clip_identity,
)
from reelweave.curate.run.stages.custom_stages import CustomClips, custom_stage, stage_name
from reelweave.curate.run.stages.model_files import section_of
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import column
from reelweave.curate.run.verdict import caption_of, judged
from reelweave.curate.search.search import WEIGHTS_VERSION
from reelweave.curate.shots import check_detector
from reelweave.curate.source_pass.tasks import ClipTask, CurationTask
from reelweave.loader.dataset.shard import npy_bytes
from reelweave.loader.errors import ObjectError, UsageError
from reelweave.loader.storage import StorageConfig, open_object

EMBED, CAPTIONS, TEXT_EMBED = "embed", "captions", "text_embed"


@dataclass(frozen=True)
class Judge:
    """Early-exit predicate: True while no threshold rejects a clip, so that rejected clips skip the remaining models.

    Attributes:
        filters: Thresholds.
        shard: Splits and bins of clips that are kept.
        scores: Names of the scores that each stage over clips writes; their thresholds wait for it.
    """

    filters: FilterConfig
    shard: ShardConfig
    scores: Mapping[str, tuple[str, ...]]

    def __call__(self, task: ClipTask) -> bool:
        """Return whether the clip, with the results so far, would be kept."""
        return self.judged(task.record, task.found).state == "kept"

    def judged(self, record: Record, results: Mapping[str, ClipResult]) -> Record:
        """Return the record after its results; see `reelweave.curate.run.verdict.judged`."""
        return judged(record, results, self.filters, self.shard, self.scores)


def judge(config: CurateConfig) -> Judge:
    """Return the predicate of a configuration."""
    scores = {EMBED: ("aesthetic",)} if config.aesthetic.weights is not None else {}
    custom_scores = {
        stage_name(name): tuple(stage_class(stage_config.code).scores)
        for name, stage_config in config.stages.items()
    }
    return Judge(config.filters, config.shard, scores | custom_scores)


def clip_stages(config: CurateConfig, ledger: Ledger, models: Mapping[str, str]) -> list[ClipStage]:
    """Return the stages over clips, the cheapest first; the expensive ones wait until duplicates are known.

    Args:
        config: Configuration of all stages.
        ledger: Destination of results.
        models: Identities from `reelweave.curate.run.stages.model_files.model_digests`.
    """

    def named(*sections: str) -> tuple[str, tuple[str, ...]]:
        section_models = {key: value for key, value in models.items() if section_of(key) in sections}
        configs = [getattr(config, section) for section in sections]
        return config_digest(*configs, models=section_models), earlier_stage_digests(
            *configs, models=section_models
        )

    judgement = judge(config)
    by_model = has_model(CAPTIONS, config)
    captioner = Captioner(config.captions) if by_model else None
    caption = CaptionClips(config.captions, config.storage, captioner)
    name, earlier = named(CAPTIONS)
    captions = ClipStage(
        CAPTIONS,
        name,
        ledger,
        caption,
        caption_identity,
        judgement,
        by_model,
        caption.prepare,
        earlier=earlier,
    )
    stages = [] if by_model else [captions]
    if config.embed.backend == "open_clip":
        head = None if config.aesthetic.weights is None else AestheticHead(config.aesthetic)
        embed = EmbedClips(ClipEmbedder(config.embed), head)
        name, earlier = named(EMBED, "aesthetic")
        stages.append(
            ClipStage(
                EMBED, name, ledger, embed, clip_identity, judgement, prepare=embed.prepare, earlier=earlier
            )
        )
    custom = [
        custom_stage(name, stage_config, ledger, models, judgement, by_model)
        for name, stage_config in config.stages.items()
    ]
    stages += [stage for stage in custom if not stage.after_dedup]
    if by_model:
        stages.append(captions)
    stages += [stage for stage in custom if stage.after_dedup]
    if config.text_embed.model is not None:
        name, earlier = named(TEXT_EMBED)
        texts = EmbedTexts(TextEmbedder(config.text_embed), ledger, name)
        prepare, keep = texts.prepare, texts.keep
        stages.append(
            ClipStage(TEXT_EMBED, name, ledger, texts, text_identity, judgement, True, prepare, keep, earlier)
        )
    return stages


_WORKER_MB = 1000.0
"""Memory of a worker with a model beside its weights: PyTorch, transformers and the pictures of a batch."""

_PREPROCESSING_MB = 900.0
"""Memory of preprocessing by open_clip or a stage of a user's, which loads PyTorch."""

_RECORD_CPUS = 0.25
"""Share of a processor of a worker that writes small files, and so waits for the storage."""


def pipeline_stages(
    stages: Sequence[ClipStage],
    config: CurateConfig,
    gpus: float,
    weights: Mapping[str, float],
) -> list[Stage[CurationTask]]:
    """Return the stages as runners take them; those with a model keep their workers.

    Args:
        stages: Stages from `clip_stages`.
        config: Batch sizes, shares of a GPU.
        gpus: GPUs of the machine; without any, models run on processors.
        weights: Megabytes of weights that each section loads, from
            `reelweave.curate.run.stages.model_files.weights_mb`.
    """
    run = config.run
    batches = {
        EMBED: config.embed.batch_clips,
        CAPTIONS: config.captions.batch_clips,
        TEXT_EMBED: config.text_embed.batch,
    }
    served = config.captions.backend == "endpoint"
    captions = 0.0 if served else run.caption_gpus
    shares = {EMBED: run.embed_gpus, CAPTIONS: captions, TEXT_EMBED: run.text_embed_gpus}
    custom = {stage_name(name): stage_config for name, stage_config in config.stages.items()}
    batches |= {name: stage_config.batch_clips for name, stage_config in custom.items()}
    shares |= {name: stage_config.gpus for name, stage_config in custom.items()}
    planned: list[Stage[CurationTask]] = []
    for stage in stages:
        if not has_model(stage.name, config):
            planned.append(Stage(stage.name, stage))
            continue
        share = shares[stage.name] if gpus else 0.0
        size = weights.get(stage.name, 0.0) + (weights.get("aesthetic", 0.0) if stage.name == EMBED else 0.0)
        # Files often hold 16 bits, which processors compute in 32.
        memory_mb = _WORKER_MB + size * (1 if gpus else 2)
        model = Stage(
            stage.name,
            stage,
            batches[stage.name],
            keeps=True,
            cpus=custom[stage.name].cpus if stage.name in custom else run.model_cpus,
            gpus=share,
            memory_mb=memory_mb,
        )
        if share or (served and stage.name == CAPTIONS):
            # Inputs are made by the workers that cut, where PyTorch is loaded beside what cutting takes.
            prepares = stage.name == EMBED or (
                isinstance(stage.function, CustomClips) and stage.function.prepares
            )
            input_mb = run.worker_memory_mb + _PREPROCESSING_MB if prepares else 0.0
            planned += split_for_gpu(stage, model, input_mb)
        else:
            planned.append(model)
    return planned


def embedding_stage(config: CurateConfig) -> str | None:
    """Return the stage over clips whose vectors are the video embedding; None where no such stage makes it."""
    backend = config.embed.backend
    if backend.startswith(STAGES):
        return stage_name(backend.removeprefix(STAGES))
    return EMBED if backend == "open_clip" else None


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


def has_model(stage: str, config: CurateConfig) -> bool:
    """Return whether a stage loads a model."""
    return stage != CAPTIONS or config.captions.model is not None


def check(config: CurateConfig) -> dict[str, str]:
    """Check before any work that all models are available; return their versions for the manifest.

    Raises:
        UsageError: one is not available; the message says what to do.
    """
    check_ocr(config.scores)
    check_detector(config.shots)
    versions = {}
    if config.embed.backend == "open_clip":
        pick_device(config.embed.device)
        embedder = ClipEmbedder(config.embed).on_cpu()
        embedder.check()
        versions[WEIGHTS_VERSION] = embedder.fingerprint()["weights_sha256"]
    if config.aesthetic.weights is not None:
        if config.embed.backend != "open_clip":
            raise UsageError(
                "aesthetic.weights needs the pictures' embeddings: set embed.backend=open_clip too"
            )
        versions["aesthetic_weights_sha256"] = AestheticHead(config.aesthetic).sha256
    if config.captions.model is not None:
        Captioner(config.captions).check()
    if config.text_embed.model is not None:
        TextEmbedder(config.text_embed).check()
    return versions


def availability(config: CurateConfig) -> tuple[str, ...]:
    """Return one sentence for each model that is not there, for the person who runs this."""
    reason = caption_availability(config.captions)
    return (reason,) if reason else ()


@dataclass(frozen=True)
class EmbedClips:
    """Function from clips to the embedding and aesthetic score of each."""

    embedder: ClipEmbedder
    head: AestheticHead | None

    def prepare(self, task: ClipTask, read: ReadClip) -> EmbedInput | Fault:
        """Return the model's input for a clip."""
        return self.embedder.sample(read(task))

    def __call__(
        self, tasks: Sequence[ClipTask], sample: Callable[[ClipTask], EmbedInput | Fault]
    ) -> list[ClipResult]:
        """Return a result for each clip."""
        embeddings = self.embedder.embed([sample(task) for task in tasks])
        return [
            embedding if isinstance(embedding, Fault) else self._result(embedding) for embedding in embeddings
        ]

    def _result(self, embedding: Embedding) -> ClipEmbedding:
        scores = None if self.head is None else {"aesthetic": self.head.score(embedding.frames)}
        return ClipEmbedding(PackedArray.of(embedding.vector), scores)


@dataclass(frozen=True)
class CaptionClips:
    """Function from clips to captions: written ones of their source first, then a model's."""

    config: CaptionConfig
    storage: StorageConfig
    captioner: Captioner | None

    def prepare(self, task: ClipTask, read: ReadClip) -> CaptionInput | Caption | Fault:
        """Return the caption of a clip that has a written one, and the model's input for another."""
        written = None if self.captioner and self.config.overwrite_written else self._written(task)
        if isinstance(written, Fault) or (written and written.text):
            return written
        return (written or NO_CAPTION) if self.captioner is None else self.captioner.prepare(read(task))

    def __call__(
        self, tasks: Sequence[ClipTask], prepared: Callable[[ClipTask], CaptionInput | Caption | Fault]
    ) -> list[ClipResult]:
        """Return a result for each clip."""
        inputs = [prepared(task) for task in tasks]
        caption_inputs = [stage_input for stage_input in inputs if isinstance(stage_input, CaptionInput)]
        by_model = iter(self.captioner.answer(caption_inputs) if self.captioner else ())
        return [
            next(by_model) if isinstance(stage_input, CaptionInput) else stage_input for stage_input in inputs
        ]

    def _written(self, task: ClipTask) -> Caption | Fault:
        storage, name = open_object(task.record.source, self.storage, task.listed_in)
        try:
            return find_written(storage, name, task.caption, task.tags, self.config)
        except ObjectError as error:
            return Fault(f"the sidecar with its caption: {error}")


@dataclass(frozen=True)
class EmbedTexts:
    """Function from captions to their embeddings, which are written as arrays to the ledger."""

    embedder: TextEmbedder
    ledger: Ledger
    fingerprint: str

    def prepare(self, task: ClipTask, _read: ReadClip) -> str:
        """Return the caption of a clip."""
        return caption_of(task.found).text

    def __call__(self, tasks: Sequence[ClipTask], caption: Callable[[ClipTask], str]) -> list[Array]:
        """Return the embedding of each caption."""
        return self.embedder([caption(task) for task in tasks])

    def keep(self, task: ClipTask, array: Array) -> TextEmbedding:
        """Write an embedding to the ledger, and return its place."""
        name = f"text-{self.fingerprint}-{text_identity(task)}"
        self.ledger.write_arrays(name, {"text": array})
        return TextEmbedding(len(array), name, hashlib.sha256(npy_bytes(array)).hexdigest())


def _text_id(task: ClipTask) -> str:
    return digest(caption_of(task.found).text)


def _text_ids(clips: pa.Table, results: Mapping[str, pa.Table], _closed: ClosedSources) -> pa.Array:
    texts = pc.fill_null(column(results[CAPTIONS], "text"), "").dictionary_encode()
    ids = pa.array([digest(text) for text in texts.dictionary.to_pylist()], pa.string()).take(texts.indices)
    return pc.if_else(pc.is_valid(column(clips, "key")), ids, None)


text_identity = Identity(_text_id, _text_ids)
"""Identity of a text embedding: the caption it is made of."""
