"""Embeddings of captions, kept as arrays in the ledger."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.types import CAPTIONS
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import TextEmbedding
from reelweave.curate.models.hub import local_folder
from reelweave.curate.models.text_embed import Array, TextEmbedConfig, TextEmbedder
from reelweave.curate.run.clip_verdict import caption_of
from reelweave.curate.run.stages.clip_stages import ClipStage, Identity, ReadClip
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import column
from reelweave.curate.source_pass.tasks import ClipTask
from reelweave.loader.dataset.shard import npy_bytes

TEXT_EMBED = "text_embed"


class TextEmbedStage(ModelStage):
    """The stage of text embeddings, over kept clips.

    Args:
        config: Configuration of text embeddings, with a model.
        cpus: Processors of a worker.
        gpus: Share of a GPU of a worker.
    """

    name = TEXT_EMBED
    after_dedup = True

    def __init__(self, config: TextEmbedConfig, cpus: float, gpus: float) -> None:
        self._config, self.configs = config, (config,)
        self.batch_clips, self.cpus, self.gpus = config.batch, cpus, gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        assert self._config.model is not None, "see `model_stages`"
        return {"text_embed.model": local_folder(self._config.model) or self._config.model}

    def check_model_paths(self) -> None:
        TextEmbedder(self._config).check_folder()

    def check(self) -> dict[str, str]:
        TextEmbedder(self._config).check()
        return {}

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        fingerprint, earlier = self.fingerprints(digests)
        texts = EmbedTexts(TextEmbedder(self._config), ledger, fingerprint)
        return ClipStage(
            self.name,
            fingerprint,
            ledger,
            texts,
            text_identity,
            go_on,
            self.after_dedup,
            texts.prepare,
            texts.keep,
            earlier,
        )


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
        self.ledger.blobs.write_arrays(name, {"text": array})
        return TextEmbedding(len(array), name, hashlib.sha256(npy_bytes(array)).hexdigest())


def _text_id(task: ClipTask) -> str:
    return digest(caption_of(task.found).text)


def _text_ids(clips: pa.Table, results: Mapping[str, pa.Table], _closed: ClosedSources) -> pa.Array:
    texts = pc.fill_null(column(results[CAPTIONS], "text"), "").dictionary_encode()
    ids = pa.array([digest(text) for text in texts.dictionary.to_pylist()], pa.string()).take(texts.indices)
    return pc.if_else(pc.is_valid(column(clips, "key")), ids, None)


text_identity = Identity(_text_id, _text_ids)
"""Identity of a text embedding: the caption it is made of."""
