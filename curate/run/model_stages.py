"""The stages over clips that a configuration asks for: embeddings, captions, text embeddings."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curate.caption import availability as caption_availability
from curate.caption.written import find_written
from curate.config import CurateConfig, fingerprint
from curate.filters.ocr import check_ocr
from curate.ledger import Ledger, digest
from curate.models.clip_frames import Fault
from curate.records import Record, Row
from curate.run.clip_stages import ClipStage, caption_identity, clip_identity, pack_array
from curate.run.verdict import judged
from curate.runners.pipeline import Pool, Stage
from curate.search.search import WEIGHTS_VERSION
from curate.shots import check_detector
from loader.dataset.shard import npy_bytes
from loader.errors import ObjectError, UsageError
from loader.storage import open_object

if TYPE_CHECKING:
    from curate.caption import Captioner
    from curate.models.aesthetic import AestheticHead
    from curate.models.embed import ClipEmbedder
    from curate.models.text_embed import TextEmbedder

EMBED, CAPTIONS, TEXT_EMBED = "embed", "captions", "text_embed"


@dataclass(frozen=True)
class Judge:
    """Clips by all that is known of them; whoever would not be kept costs no further model anything.

    Attributes:
        config: thresholds.
        scores: names of the scores that each stage over clips writes; their thresholds wait for it.
    """

    config: CurateConfig
    scores: Mapping[str, tuple[str, ...]]

    def __call__(self, row: Row) -> bool:
        """Whether the clip of a row, with the results it carries, would be kept."""
        return self.judged(Record.from_row(row["record"]), row["found"]).state == "kept"

    def judged(self, record: Record, results: Mapping[str, Row]) -> Record:
        """The record after its results; see `curate.run.verdict.judged`."""
        pending = {name for stage, names in self.scores.items() if stage not in results for name in names}
        return judged(record, results, self.config, pending)


def judge(config: CurateConfig) -> Judge:
    """What decides about clips under a configuration."""
    return Judge(config, {EMBED: ("aesthetic",)} if config.aesthetic.weights is not None else {})


def clip_stages(config: CurateConfig, ledger: Ledger, models: Mapping[str, str]) -> list[ClipStage]:
    """The stages over clips, in order of their price; the dear ones wait until duplicates are known.

    Args:
        config: of all stages.
        ledger: where results go.
        models: identities as of `curate.run.model_files.model_digests`.
    """

    def named(*sections: str) -> str:
        own = {key: value for key, value in models.items() if key.split(".")[0] in sections}
        return fingerprint(*(getattr(config, section) for section in sections), models=own)

    wanted = judge(config)
    by_model = has_model(CAPTIONS, config)
    name = named(CAPTIONS)
    work = CaptionWork(config)
    captions = ClipStage(CAPTIONS, name, ledger, work, caption_identity, wanted, after_dedup=by_model)
    stages = [] if by_model else [captions]
    if config.embed.backend == "open_clip":
        name = named(EMBED, "aesthetic")
        stages.append(ClipStage(EMBED, name, ledger, EmbedWork(config), clip_identity, wanted))
    if by_model:
        stages.append(captions)
    if config.text_embed.model is not None:
        name = named(TEXT_EMBED)
        text = TextWork(config, ledger, name)
        stages.append(ClipStage(TEXT_EMBED, name, ledger, text, text_identity, wanted, after_dedup=True))
    return stages


def pipeline_stages(
    stages: Sequence[ClipStage], config: CurateConfig, pools: Mapping[str, Pool], gpus: float
) -> list[Stage]:
    """The same stages as a runner takes them; those with a model keep their workers.

    Args:
        stages: of `clip_stages`.
        config: batch sizes, shares of a GPU.
        pools: workers by stage; one each where nothing is said.
        gpus: of the machine; 0 lets models run on processors.
    """
    run = config.run
    batches = {
        EMBED: config.embed.batch_clips,
        CAPTIONS: config.captions.batch_clips,
        TEXT_EMBED: config.text_embed.batch,
    }
    shares = {EMBED: run.embed_gpus, CAPTIONS: run.caption_gpus, TEXT_EMBED: run.text_embed_gpus}
    made = []
    for stage in stages:
        if not has_model(stage.name, config):
            made.append(Stage(stage.name, stage))
            continue
        pool = pools.get(stage.name, Pool(1, 1, 1))
        share = shares[stage.name] if gpus else 0.0
        made.append(Stage(stage.name, stage, batches[stage.name], pool, cpus=run.model_cpus, gpus=share))
    return made


def has_model(stage: str, config: CurateConfig) -> bool:
    """Whether a stage loads a model."""
    return stage != CAPTIONS or config.captions.model is not None


def check(config: CurateConfig) -> dict[str, str]:
    """Finds out before any work whether all models can be had; returns their versions for the manifest.

    Raises:
        UsageError: one cannot, and what to do.
    """
    check_ocr(config.scores)
    check_detector(config.shots)
    versions = {}
    if config.embed.backend == "open_clip":
        embedder = EmbedWork(config).embedder()
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
        CaptionWork(config).captioner().check()
    if config.text_embed.model is not None:
        from curate.models.text_embed import TextEmbedder

        TextEmbedder(config.text_embed).check()
    return versions


def availability(config: CurateConfig) -> tuple[str, ...]:
    """What a person should know of models that are not there, one sentence each."""
    said = caption_availability(config.captions)
    return (said,) if said else ()


@dataclass
class EmbedWork:
    """Clips -> embedding and aesthetic score of each."""

    config: CurateConfig
    _embedder: "ClipEmbedder | None" = field(default=None, init=False, repr=False, compare=False)
    _head: "AestheticHead | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_embedder": None, "_head": None}

    def embedder(self) -> "ClipEmbedder":
        """The model, loaded at its first use."""
        from curate.models.embed import ClipEmbedder

        if self._embedder is None:
            self._embedder = ClipEmbedder(self.config.embed)
        return self._embedder

    def __call__(self, rows: Sequence[Row], read: Callable[[Row], bytes]) -> list[Row]:
        """A result for each clip."""
        results = []
        for found in self.embedder()([read(row) for row in rows]):
            if isinstance(found, Fault):
                results.append({"fault": found.reason})
                continue
            result: Row = {"embedding": pack_array(found.vector)}
            if self.config.aesthetic.weights is not None:
                result["scores"] = {"aesthetic": self._aesthetic(found.frames)}
            results.append(result)
        return results

    def _aesthetic(self, frames: Any) -> float:
        from curate.models.aesthetic import AestheticHead

        if self._head is None:
            self._head = AestheticHead(self.config.aesthetic)
        return self._head.score(frames)


@dataclass
class CaptionWork:
    """Clips -> what people wrote about their source, or else what the model says."""

    config: CurateConfig
    _captioner: "Captioner | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_captioner": None}

    def captioner(self) -> "Captioner":
        """The model, loaded at its first use."""
        from curate.caption import Captioner

        if self._captioner is None:
            self._captioner = Captioner(self.config.captions)
        return self._captioner

    def __call__(self, rows: Sequence[Row], read: Callable[[Row], bytes]) -> list[Row]:
        """A result for each clip."""
        captions = self.config.captions
        results: list[Row | None] = [None] * len(rows)
        if captions.model is None or not captions.overwrite_written:
            results = [self._written(row) for row in rows]
        if captions.model is None:
            return [result or {"text": "", "source": "none", "provenance": {}} for result in results]
        asked = [number for number, result in enumerate(results) if result is None]
        for number, found in zip(
            asked, self.captioner()([read(rows[number]) for number in asked]), strict=True
        ):
            results[number] = (
                {"fault": found.reason}
                if isinstance(found, Fault)
                else {"text": found.text, "source": found.source, "provenance": dict(found.provenance)}
            )
        return [result for result in results if result is not None]

    def _written(self, row: Row) -> Row | None:
        source = row["record"]["source"]
        storage, name = open_object(source, self.config.storage, row["listed_in"])
        try:
            found = find_written(storage, name, row["caption"], row["tags"], self.config.captions)
        except ObjectError as error:
            return {"fault": f"the sidecar with its caption: {error}"}
        return {"text": found.text, "source": found.source, "provenance": {}} if found.text else None


@dataclass
class TextWork:
    """Captions -> their embeddings, kept as arrays in the ledger."""

    config: CurateConfig
    ledger: Ledger
    fingerprint: str
    _embedder: "TextEmbedder | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_embedder": None}

    def __call__(self, rows: Sequence[Row], _read: Callable[[Row], bytes]) -> list[Row]:
        """A result for each row."""
        from curate.models.text_embed import TextEmbedder

        if self._embedder is None:
            self._embedder = TextEmbedder(self.config.text_embed)
        texts = [row["found"][CAPTIONS].get("text", "") for row in rows]
        results = []
        for row, array in zip(rows, self._embedder(texts), strict=True):
            name = f"text-{self.fingerprint}-{text_identity(row)}"
            self.ledger.write_arrays(name, {"text": array})
            sha256 = hashlib.sha256(npy_bytes(array)).hexdigest()
            results.append({"tokens": len(array), "arrays": name, "sha256": sha256})
        return results


def text_identity(row: Row) -> str:
    """Of a text embedding: the caption it was made of."""
    return digest(row["found"].get(CAPTIONS, {}).get("text", ""))
