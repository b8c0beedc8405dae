"""Embeddings of clips by a model of open_clip, and aesthetic scores of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipEmbedding, ClipResult, PackedArray
from reelweave.curate.models.aesthetic import AestheticConfig, AestheticHead, check_head_file
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.device import pick_device
from reelweave.curate.models.embed import ClipEmbedder, EmbedConfig, Embedding, EmbedInput
from reelweave.curate.models.open_clip_model import check_model_path
from reelweave.curate.run.stages.clip_stages import ClipStage, ReadClip, clip_identity
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.search.search import WEIGHTS_VERSION
from reelweave.curate.source_pass.tasks import ClipTask

EMBED = "embed"
_HUB, _FOLDER = "hf-hub:", "local-dir:"


class EmbedStage(ModelStage):
    """The stage of embeddings.

    Args:
        config: Configuration of embeddings.
        aesthetic: Head over them; without weights there are no aesthetic scores.
        cpus: Processors of a worker.
        gpus: Share of a GPU of a worker.
    """

    name = EMBED
    makes_vectors = True
    prepares = True

    def __init__(self, config: EmbedConfig, aesthetic: AestheticConfig, cpus: float, gpus: float) -> None:
        self._config, self._aesthetic, self.configs = config, aesthetic, (config, aesthetic)
        self.scores = () if aesthetic.weights is None else ("aesthetic",)
        self.batch_clips, self.cpus, self.gpus = config.batch_clips, cpus, gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        from reelweave.curate.models.open_clip_model import locate

        models: dict[str, Path | str] = {}
        name, weights = locate(self._config.model, self._config.pretrained)
        if name.startswith(_FOLDER):
            models["embed.model"] = Path(name.removeprefix(_FOLDER))
        elif name.startswith(_HUB):
            models["embed.model"] = name.removeprefix(_HUB)
        elif weights is not None and Path(weights).is_file():
            models["embed.pretrained"] = Path(weights)
        # Weights of a tag are the library's: the configuration says which.
        if self._aesthetic.weights is not None:
            models["aesthetic.weights"] = Path(self._aesthetic.weights)
        return models

    def check_model_paths(self) -> None:
        check_model_path(self._config.model, self._config.pretrained)
        if self._aesthetic.weights is not None:
            check_head_file(Path(self._aesthetic.weights))

    def check(self) -> dict[str, str]:
        pick_device(self._config.device)
        embedder = ClipEmbedder(self._config).on_cpu()
        embedder.check()
        versions = {WEIGHTS_VERSION: embedder.fingerprint()["weights_sha256"]}
        if (head := self._head()) is not None:
            versions["aesthetic_weights_sha256"] = head.sha256
        return versions

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        clips = EmbedClips(ClipEmbedder(self._config), self._head())
        fingerprint, earlier = self.fingerprints(digests)
        return ClipStage(
            self.name,
            fingerprint,
            ledger,
            clips,
            clip_identity,
            go_on,
            prepare=clips.prepare,
            earlier=earlier,
        )

    def _head(self) -> AestheticHead | None:
        return None if self._aesthetic.weights is None else AestheticHead(self._aesthetic)


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
