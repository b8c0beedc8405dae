"""Stages over clips that a configuration asks for: embeddings, captions, text embeddings."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curate.caption import availability as caption_availability
from curate.caption.types import NO_CAPTION, Caption
from curate.caption.written import find_written
from curate.config import CurateConfig, fingerprint
from curate.filters.ocr import check_ocr
from curate.ledger import Ledger, digest
from curate.models.clip_frames import Fault
from curate.records import ClipEmbedding, ClipResult, PackedArray, Record, TextEmbedding
from curate.run.clip_stages import ClipStage, ReadClip, caption_identity, clip_identity
from curate.run.verdict import caption_of, judged
from curate.runners.pipeline import Pool, Stage
from curate.search.search import WEIGHTS_VERSION
from curate.shots import check_detector
from curate.source_pass.tasks import ClipTask, CurationTask
from loader.dataset.shard import npy_bytes
from loader.errors import ObjectError, UsageError
from loader.storage import open_object

if TYPE_CHECKING:
    from curate.caption import Captioner
    from curate.models.aesthetic import AestheticHead
    from curate.models.embed import ClipEmbedder, Embedding, Floats
    from curate.models.text_embed import TextEmbedder

EMBED, CAPTIONS, TEXT_EMBED = "embed", "captions", "text_embed"


@dataclass(frozen=True)
class Judge:
    """Early-exit predicate: True while no threshold rejects a clip, so that rejected clips skip the remaining models.

    Attributes:
        config: Thresholds.
        scores: Names of the scores that each stage over clips writes; their thresholds wait for it.
    """

    config: CurateConfig
    scores: Mapping[str, tuple[str, ...]]

    def __call__(self, task: ClipTask) -> bool:
        """Return whether the clip, with the results so far, would be kept."""
        return self.judged(task.record, task.found).state == "kept"

    def judged(self, record: Record, results: Mapping[str, ClipResult]) -> Record:
        """Return the record after its results; see `curate.run.verdict.judged`."""
        pending = {name for stage, names in self.scores.items() if stage not in results for name in names}
        return judged(record, results, self.config, pending)


def judge(config: CurateConfig) -> Judge:
    """Return the predicate of a configuration."""
    return Judge(config, {EMBED: ("aesthetic",)} if config.aesthetic.weights is not None else {})


def clip_stages(config: CurateConfig, ledger: Ledger, models: Mapping[str, str]) -> list[ClipStage]:
    """Return the stages over clips, the cheapest first; the expensive ones wait until duplicates are known.

    Args:
        config: Configuration of all stages.
        ledger: Destination of results.
        models: Identities from `curate.run.model_files.model_digests`.
    """

    def named(*sections: str) -> str:
        own = {key: value for key, value in models.items() if key.split(".")[0] in sections}
        return fingerprint(*(getattr(config, section) for section in sections), models=own)

    wanted = judge(config)
    by_model = has_model(CAPTIONS, config)
    name = named(CAPTIONS)
    function = CaptionClips(config)
    captions = ClipStage(CAPTIONS, name, ledger, function, caption_identity, wanted, after_dedup=by_model)
    stages = [] if by_model else [captions]
    if config.embed.backend == "open_clip":
        name = named(EMBED, "aesthetic")
        stages.append(ClipStage(EMBED, name, ledger, EmbedClips(config), clip_identity, wanted))
    if by_model:
        stages.append(captions)
    if config.text_embed.model is not None:
        name = named(TEXT_EMBED)
        text = EmbedTexts(config, ledger, name)
        stages.append(ClipStage(TEXT_EMBED, name, ledger, text, text_identity, wanted, after_dedup=True))
    return stages


def pipeline_stages(
    stages: Sequence[ClipStage], config: CurateConfig, pools: Mapping[str, Pool], gpus: float
) -> list[Stage[CurationTask]]:
    """Return the stages as runners take them; those with a model keep their workers.

    Args:
        stages: Stages from `clip_stages`.
        config: Batch sizes, shares of a GPU.
        pools: Workers by stage; one for each stage that is missing.
        gpus: GPUs of the machine; without any, models run on processors.
    """
    run = config.run
    batches = {
        EMBED: config.embed.batch_clips,
        CAPTIONS: config.captions.batch_clips,
        TEXT_EMBED: config.text_embed.batch,
    }
    shares = {EMBED: run.embed_gpus, CAPTIONS: run.caption_gpus, TEXT_EMBED: run.text_embed_gpus}
    made: list[Stage[CurationTask]] = []
    for stage in stages:
        if not has_model(stage.name, config):
            made.append(Stage(stage.name, stage))
            continue
        pool = pools.get(stage.name, Pool(1, 1, 1))
        share = shares[stage.name] if gpus else 0.0
        made.append(Stage(stage.name, stage, batches[stage.name], pool, cpus=run.model_cpus, gpus=share))
    return made


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
        embedder = EmbedClips(config).embedder()
        embedder.check()
        versions[WEIGHTS_VERSION] = embedder.fingerprint()["weights_sha256"]
    if config.aesthetic.weights is not None:
        if config.embed.backend != "open_clip":
            raise UsageError(
                "aesthetic.weights needs the pictures' embeddings: set embed.backend=open_clip too"
            )
        from curate.models.aesthetic import AestheticHead

        versions["aesthetic_weights_sha256"] = AestheticHead(config.aesthetic).sha256
    if config.captions.model is not None:
        CaptionClips(config).captioner().check()
    if config.text_embed.model is not None:
        from curate.models.text_embed import TextEmbedder

        TextEmbedder(config.text_embed).check()
    return versions


def availability(config: CurateConfig) -> tuple[str, ...]:
    """Return one sentence for each model that is not there, for the person who runs this."""
    said = caption_availability(config.captions)
    return (said,) if said else ()


@dataclass
class EmbedClips:
    """Function from clips to the embedding and aesthetic score of each."""

    config: CurateConfig
    _embedder: "ClipEmbedder | None" = field(default=None, init=False, repr=False, compare=False)
    _head: "AestheticHead | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_embedder": None, "_head": None}

    def embedder(self) -> "ClipEmbedder":
        """Return the model, loaded at its first use."""
        from curate.models.embed import ClipEmbedder

        if self._embedder is None:
            self._embedder = ClipEmbedder(self.config.embed)
        return self._embedder

    def __call__(self, tasks: Sequence[ClipTask], read: ReadClip) -> list[ClipResult]:
        """Return a result for each clip."""
        found = self.embedder()([read(task) for task in tasks])
        return [one if isinstance(one, Fault) else self._result(one) for one in found]

    def _result(self, found: "Embedding") -> ClipEmbedding:
        scored = self.config.aesthetic.weights is not None
        scores = {"aesthetic": self._aesthetic(found.frames)} if scored else None
        return ClipEmbedding(PackedArray.of(found.vector), scores)

    def _aesthetic(self, frames: "Floats") -> float:
        from curate.models.aesthetic import AestheticHead

        if self._head is None:
            self._head = AestheticHead(self.config.aesthetic)
        return self._head.score(frames)


@dataclass
class CaptionClips:
    """Function from clips to captions: written ones of their source first, then a model's."""

    config: CurateConfig
    _captioner: "Captioner | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_captioner": None}

    def captioner(self) -> "Captioner":
        """Return the model, loaded at its first use."""
        from curate.caption import Captioner

        if self._captioner is None:
            self._captioner = Captioner(self.config.captions)
        return self._captioner

    def __call__(self, tasks: Sequence[ClipTask], read: ReadClip) -> list[ClipResult]:
        """Return a result for each clip."""
        captions = self.config.captions
        if captions.model is not None and captions.overwrite_written:
            return list(self.captioner()([read(task) for task in tasks]))
        written = [self._written(task) for task in tasks]
        if captions.model is None:
            return [result or NO_CAPTION for result in written]
        asked = [task for task, result in zip(tasks, written, strict=True) if result is None]
        by_model = iter(self.captioner()([read(task) for task in asked]))
        return [next(by_model) if result is None else result for result in written]

    def _written(self, task: ClipTask) -> Caption | Fault | None:
        storage, name = open_object(task.record.source, self.config.storage, task.listed_in)
        try:
            found = find_written(storage, name, task.caption, task.tags, self.config.captions)
        except ObjectError as error:
            return Fault(f"the sidecar with its caption: {error}")
        return found if found.text else None


@dataclass
class EmbedTexts:
    """Function from captions to their embeddings, written as arrays to the ledger."""

    config: CurateConfig
    ledger: Ledger
    fingerprint: str
    _embedder: "TextEmbedder | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_embedder": None}

    def __call__(self, tasks: Sequence[ClipTask], _read: ReadClip) -> list[ClipResult]:
        """Return a result for each caption."""
        from curate.models.text_embed import TextEmbedder

        if self._embedder is None:
            self._embedder = TextEmbedder(self.config.text_embed)
        texts = [caption_of(task.found).text for task in tasks]
        results: list[ClipResult] = []
        for task, array in zip(tasks, self._embedder(texts), strict=True):
            name = f"text-{self.fingerprint}-{text_identity(task)}"
            self.ledger.write_arrays(name, {"text": array})
            sha256 = hashlib.sha256(npy_bytes(array)).hexdigest()
            results.append(TextEmbedding(len(array), name, sha256))
        return results


def text_identity(task: ClipTask) -> str:
    """Return the identity of a text embedding: the caption it is made of."""
    return digest(caption_of(task.found).text)
