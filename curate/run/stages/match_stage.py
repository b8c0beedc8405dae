"""Match of captions and clips: the cosine of a caption and of the stored embedding of its clip, by one CLIP model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipEmbedding, ClipResult, ClipScores
from reelweave.curate.models.embed import ClipEmbedder, EmbedConfig
from reelweave.curate.run.clip_verdict import caption_of
from reelweave.curate.run.stages.clip_stages import ClipStage, ReadClip
from reelweave.curate.run.stages.custom_stages import captioned_identity
from reelweave.curate.run.stages.embed_stage import EMBED, EmbedStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.source_pass.tasks import ClipTask

MATCH, CUT = "caption_match", "caption_match_cut"
"""Score, and the mark of a caption of which the model reads the beginning alone."""

_DIGITS = 4


class MatchStage(ModelStage):
    """The stage of the match, behind captions; no clip is decoded.

    Args:
        config: Configuration of embeddings, by a model of open_clip.
        embed: Stage that makes them.
        captions_late: Whether captions come after deduplication.
    """

    name = MATCH
    scores = (MATCH,)

    def __init__(self, config: EmbedConfig, embed: EmbedStage, captions_late: bool) -> None:
        self._config, self._embed, self.configs = config, embed, (config,)
        self.after_dedup = captions_late
        self.batch_clips, self.cpus, self.gpus = config.batch_clips, embed.cpus, embed.gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        return {key: model for key, model in self._embed.models.items() if key.startswith("embed.")}

    def check_model_paths(self) -> None:
        self._embed.check_model_paths()

    def check(self) -> dict[str, str]:
        ClipEmbedder(self._config).on_cpu().text(["a check"])
        return {}

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        clips = MatchClips(ClipEmbedder(self._config))
        fingerprint, earlier = self.fingerprints(digests)
        return ClipStage(
            self.name,
            fingerprint,
            ledger,
            clips,
            captioned_identity,
            go_on,
            self.after_dedup,
            clips.prepare,
            earlier=earlier,
        )


@dataclass(frozen=True)
class MatchClips:
    """Function from captions and embeddings to their cosines."""

    embedder: ClipEmbedder

    def prepare(self, task: ClipTask, _read: ReadClip) -> str:
        """Return the caption of a clip."""
        return caption_of(task.found).text

    def __call__(
        self, tasks: Sequence[ClipTask], caption_of_task: Callable[[ClipTask], str]
    ) -> list[ClipResult]:
        """Return the score of each clip; none for one without a caption."""
        captions = [caption_of_task(task) for task in tasks]
        texts = [caption for caption in captions if caption]
        compared = iter(
            zip(self.embedder.text(texts), self.embedder.cut_texts(texts), strict=True) if texts else ()
        )
        results: list[ClipResult] = []
        for task, caption in zip(tasks, captions, strict=True):
            embedded = task.found.get(EMBED)
            if not caption:
                results.append(ClipScores({}))
                continue
            text, is_cut = next(compared)
            assert isinstance(embedded, ClipEmbedding), "a clip that the embedding failed comes no further"
            clip = embedded.embedding.array.astype(np.float64)
            match = float(clip @ text.astype(np.float64) / np.linalg.norm(clip))
            results.append(ClipScores({MATCH: round(match, _DIGITS)} | ({CUT: 1.0} if is_cut else {})))
        return results
