"""Evaluation of sets of videos."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.errors import UsageError
from reelweave.pipelines.evaluation.metrics import compare_videos, scores
from reelweave.pipelines.evaluation.model_checks import check_clip
from reelweave.pipelines.evaluation.videos import VideoSet, read_video
from reelweave.train.config.vae import LpipsConfig
from reelweave.train.vae.losses.perceptual import Perceptual

if TYPE_CHECKING:
    from reelweave.curate.models.embed import ClipEmbedder

_CLIP_PICTURES = 8

_log = logging.getLogger(__name__)


class Evaluator:
    """Metrics of videos, with the references and models that are given.

    Args:
        reference: videos of the same names.
        lpips: weights of LPIPS' backbone.
        clip: open_clip model, as a folder or NAME:FILE.

    Raises:
        UsageError: weights are missing or of another model.
    """

    def __init__(self, reference: VideoSet | None, lpips: Path | None, clip: str | None) -> None:
        self._references = {path.name: path for path in reference.paths} if reference else {}
        self._perceptual = None if lpips is None else Perceptual(LpipsConfig(backbone=lpips), "--lpips")
        self._embedder = None if clip is None else _embedder(clip)

    def check(self, videos: VideoSet) -> None:
        """Check that a set has the references and captions that its metrics need.

        Raises:
            UsageError: it has not.
        """
        for path in videos.paths:
            if self._references and path.name not in self._references:
                raise UsageError(f"{path} has no video of the same name in --reference")
            if self._embedder is not None and videos.caption(path) is None:
                raise UsageError(
                    f"{path} has no caption for --clip: {videos.folder} needs the manifest of its run"
                )

    def evaluate(self, videos: VideoSet, finished: Callable[[], None]) -> dict[str, Any]:
        """Return the means over videos, and each video's own scores; ``cut_captions`` if CLIP cuts some off.

        Raises:
            UsageError: a reference is shorter than its video.
            RunError: a video cannot be decoded.
        """
        scores_of: dict[str, dict[str, float | None]] = {}
        cut_captions = self._count_cut(videos)
        for path in videos.paths:
            scores_of[path.name] = self._scores(path, videos.caption(path))
            finished()
        means: dict[str, float | None] = {}
        for name in dict.fromkeys(name for video_scores in scores_of.values() for name in video_scores):
            values = [
                value for video_scores in scores_of.values() if (value := video_scores.get(name)) is not None
            ]
            means[name] = float(np.mean(values)) if values else None
        return {
            "folder": str(videos.folder),
            "step": videos.step,
            "videos": len(videos.paths),
            **({"cut_captions": cut_captions} if cut_captions else {}),
            "metrics": means,
            "by_video": [{"file": name, **video_scores} for name, video_scores in scores_of.items()],
        }

    def _count_cut(self, videos: VideoSet) -> int:
        """Return the number of videos whose caption CLIP reads in part, and warn of them."""
        captions = [caption for path in videos.paths if (caption := videos.caption(path)) is not None]
        cut_captions = sum(self._embedder.cut_texts(captions)) if self._embedder and captions else 0
        if cut_captions:
            _log.warning(
                "%s: %d of %d captions are longer than the model of --clip reads: clip_similarity compares their"
                " beginnings",
                videos.folder,
                cut_captions,
                len(captions),
            )
        return cut_captions

    def _scores(self, path: Path, caption: str | None) -> dict[str, float | None]:
        video_CTHW, fps = read_video(path)
        video_scores = scores(video_CTHW, fps)
        if self._references:
            other = self._references[path.name]
            reference_CTHW, _ = read_video(other, video_CTHW.shape[2:])
            frames = video_CTHW.shape[1]
            if reference_CTHW.shape[1] < frames:
                raise UsageError(
                    f"{other} has {reference_CTHW.shape[1]} frames, fewer than the {frames} of {path}"
                )
            video_scores |= compare_videos(video_CTHW, reference_CTHW[:, :frames], self._perceptual)
        if self._embedder is not None and caption is not None:
            video_scores["clip_similarity"] = _similarity(self._embedder, video_CTHW, caption)
        return video_scores


def _similarity(embedder: "ClipEmbedder", video_CTHW: NDArray[np.uint8], caption: str) -> float:
    """Return the mean cosine of a caption and of pictures evenly spaced in the video."""
    frame_indices = np.linspace(0, video_CTHW.shape[1] - 1, _CLIP_PICTURES).round().astype(int)
    pictures = embedder.pictures(
        [video_CTHW[:, frame].transpose(1, 2, 0) for frame in sorted(set(frame_indices.tolist()))]
    )
    return float((pictures @ embedder.text([caption])[0]).mean())


def _embedder(clip: str) -> "ClipEmbedder":
    from reelweave.curate.models.embed import ClipEmbedder, EmbedConfig

    name, weights = check_clip(clip)
    embedder = ClipEmbedder(EmbedConfig(backend="open_clip", model=name, pretrained=weights))
    embedder.check()
    return embedder
