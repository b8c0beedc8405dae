"""Run of `reelweave sample`: requested videos over all ranks, round by round."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from reelweave.loader.base.named_file import read_named
from reelweave.loader.errors import UsageError
from reelweave.pipelines.sampling.cache_gate import CacheQuality, pass_gate
from reelweave.pipelines.sampling.outputs import OneOutput, Outputs
from reelweave.pipelines.sampling.requests import Request
from reelweave.pipelines.terminal.mp4 import encode_mp4
from reelweave.train.distributed.world import World
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.decode.budget import DecodePlan, free_bytes
from reelweave.train.sampling.decode.fitting import FittingDecoder
from reelweave.train.sampling.decode.kept_latents import kept_latents, load_latents
from reelweave.train.sampling.decode.offload import on_the_host
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.in_training.groups import VideoGroups
from reelweave.train.sampling.in_training.loading import video_layout
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.prediction.first_frames import read_first_frames
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from reelweave.train.sampling.trained.load import Trained

STAGES = ("text", "denoise", "decode", "write")

_MOST_IMAGE_BYTES = 1 << 30


@dataclass
class Made:
    """Result of a run, the same on every rank.

    Attributes:
        records: records of the videos that this run made, by number.
        seconds: seconds of each stage, over all videos of this run.
        cache: quality of the first video under the configured cache; None: there is no cache, or nothing was to do.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    cache: CacheQuality | None = None


class SamplingRun:
    """Videos of one command on the ranks of a grid; a collective to make, and to run.

    Ranks of a group make a video together, and groups make different videos of a round at the same time. Rounds hold
    videos of like cost. After each, all ranks meet, so that a failure on one ends all.

    Args:
        world: all ranks.
        trained: the model, on every rank.
        requests: videos to make.
        common: configuration that requests change.
        fps: frames per second of the files.
        degrees: layout.
        decode_bytes: memory that a decode may take; None: the free memory of a GPU.
        files: digest of the files that the videos follow from (`sources_sha256`); None: not compared.

    Raises:
        UsageError: a video does not fit the model, the degrees do not fit the ranks or the model, or no tiles keep
            ``decode_bytes``.
    """

    def __init__(
        self,
        world: World,
        trained: Trained,
        requests: Sequence[Request],
        common: SampleConfig,
        fps: int,
        degrees: SampleLayoutConfig,
        decode_bytes: int | None = None,
        files: str | None = None,
    ) -> None:
        self._files = files
        self._trained, self._requests, self._fps = trained, requests, fps
        self._configs = [request.config(common, index) for index, request in enumerate(requests)]
        if trained.ranks is None:
            ranks = SamplingRanks(SamplingMesh.of(degrees, world.size), world)
            layout = build_layout(trained.bundle, ranks, degrees, decode_bytes, trained.experts)
            self._groups = VideoGroups.of_sampling(ranks)
        else:
            layout, self._groups = video_layout(trained, decode_bytes)
            shapes = {(config.frames, config.height, config.width) for config in self._configs}
            if trained.experts and self._groups.lockstep and len(shapes) > 1:
                raise UsageError(
                    "two experts whose ranks gather weights together need videos of one size, as their boundary depends"
                    " on it: make those of each size in a command of its own"
                )
        # One sampler, with its caches of blocks, for all videos that differ in the seed alone.
        samplers: dict[str, VideoSampler] = {}
        self._samplers = [self._sampler(index, layout, samplers) for index in range(len(requests))]
        self.decode_plans: dict[tuple[int, int, int], DecodePlan] = {}
        if decode_bytes is not None and isinstance(layout.decoder, FittingDecoder):
            sizes = sorted({sampler.latent_size for sampler in self._samplers})
            self.decode_plans = {size: layout.decoder.plan(size, budget_bytes=decode_bytes) for size in sizes}
        self.layout: dict[str, Any] = {
            "ranks": world.size,
            **self._groups.degrees,
            "vae_ranks": degrees.vae_ranks or self._groups.video.size,
            **({"scalefusion": degrees.scalefusion} if degrees.scalefusion else {}),
        }
        divides = degrees.latent_parallel.model_dump(mode="json")
        self._approximation = {"lp": degrees.lp, **divides} if degrees.lp > 1 else None

    @property
    def expected(self) -> list[dict[str, Any]]:
        """Values that identify each video."""
        trained = self._trained
        return [
            {
                "prompt": request.prompt,
                "image": None if request.image is None else _digest(Path(request.image)),
                "image_frames": request.image_frames,
                "checkpoint": trained.checkpoint,
                "step": trained.step,
                "weights": trained.weights,
                "files": self._files,
                "fps": self._fps,
                "config": config.model_dump(mode="json"),
                "approximation": self._approximation,
            }
            for request, config in zip(self._requests, self._configs, strict=True)
        ]

    def rounds(self, indices: Sequence[int]) -> list[list[int]]:
        """Return the videos of each round, one per group of ranks; the most expensive come first."""
        groups = self._groups.count
        ordered = sorted(indices, key=lambda index: (-self._tokens(index), index))
        return [ordered[first : first + groups] for first in range(0, len(ordered), groups)]

    def steps(self, index: int) -> int:
        """Return the number of solver steps of a video."""
        return self._configs[index].total_steps

    def run(
        self,
        indices: Sequence[int],
        outputs: Outputs | OneOutput,
        progress: Callable[[], None],
        finished: Callable[[], None],
    ) -> Made:
        """Make these videos and write them; a collective with equal arguments.

        Args:
            indices: the videos.
            outputs: files, written by the first rank of each group.
            progress: called after each solver step of this rank's group.
            finished: called after each round.

        Raises:
            UsageError: a file cannot be written.
            RunError: a prediction is not finite, the cache does not pass its gate, or a decode failed; then latents
                are kept.
        """
        finished_videos, expected = Made(), self.expected
        if indices and self._configs[0].cache is not None:
            finished_videos.cache = self._pass_cache_gate()
        for numbers_of_round in self.rounds(indices):
            record: dict[str, Any] | None = None
            if self._groups.number < len(numbers_of_round):
                index = numbers_of_round[self._groups.number]
                record = self._make(index, expected[index], outputs, progress)
            else:
                self._keep_step(numbers_of_round[0], videos=0)
            for text in self._groups.world.gather_text("" if record is None else json.dumps(record)):
                if text:
                    finished_videos.records.append(json.loads(text))
            finished()
        for video_record in finished_videos.records:
            for stage in STAGES:
                finished_videos.seconds[stage] += video_record["seconds"][stage]
        return finished_videos

    def _make(
        self,
        index: int,
        expected: dict[str, Any],
        outputs: Outputs | OneOutput,
        progress: Callable[[], None],
    ) -> dict[str, Any] | None:
        """Make one video, and return its record on the first rank of the video."""
        sampler, video, seconds = self._samplers[index], self._groups.video, dict.fromkeys(STAGES, 0.0)
        first, path = video.rank == 0, outputs.latents(index)
        of = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()
        latents_BCTHW = self._read_kept(sampler, path, of)
        self._keep_step(index, videos=0 if latents_BCTHW is not None else 1)
        if latents_BCTHW is None:
            latents_BCTHW = self._denoise(index, seconds, progress)
        else:
            for _ in range(self.steps(index)):
                progress()
        with kept_latents(path, latents_BCTHW, {"of": of}, first):
            with _time_stage(seconds, "decode"):
                with on_the_host(self._leaving(sampler), latents_BCTHW.device):
                    video_BCTHW = sampler.decode(latents_BCTHW)
                pixels_CTHW = None if video_BCTHW is None else video_BCTHW[0].cpu().numpy()
            if pixels_CTHW is None:
                return None
            with _time_stage(seconds, "write"):
                data = encode_mp4(pixels_CTHW, self._fps)
            return outputs.write(index, data, {**expected, "layout": self.layout, "seconds": seconds})

    def _leaving(self, sampler: VideoSampler) -> Sequence[Denoiser]:
        """Return the models that leave the GPU for a decode: all, if it does not fit beside them."""
        decoder = sampler.layout.decoder
        fits = isinstance(decoder, FittingDecoder) and decoder.fits(
            sampler.latent_size, free_bytes(sampler.device)
        )
        return [] if fits else self._trained.present

    def _denoise(
        self, index: int, seconds: dict[str, float], progress: Callable[[], None] = lambda: None
    ) -> torch.Tensor:
        sampler = self._samplers[index]
        with _time_stage(seconds, "text"):
            passes = sampler.encode([self._requests[index].prompt])
            given_BCTHW = self._first_frames(sampler, index)
        with _time_stage(seconds, "denoise"):
            return sampler.denoise(passes, [self._configs[index].seed], progress, given_BCTHW)

    def _keep_step(self, index: int, videos: int) -> None:
        """Denoise a video and drop it, as often as groups that gather weights together denoise more than this one."""
        for _ in range(self._groups.missing(videos)):
            self._denoise(index, {})

    def _first_frames(self, sampler: VideoSampler, index: int) -> torch.Tensor | None:
        """Return the latents of the frames that a video begins with."""
        request, config = self._requests[index], self._configs[index]
        if request.image is None:
            return None
        size = (config.height, config.width)
        path, named = Path(request.image), f"--image {request.image}"
        return sampler.encode_frames(read_first_frames(path, request.image_frames, size, named))

    def _pass_cache_gate(self) -> CacheQuality:
        """Compare the first video with and without the cache, on every group of ranks; all take its polynomial."""
        sampler = self._samplers[0]
        passes, given_BCTHW = sampler.encode([self._requests[0].prompt]), self._first_frames(sampler, 0)
        polynomial, quality = pass_gate(
            sampler, self._groups.video, self._configs[0].seed, passes, given_BCTHW
        )
        fitted = {id(sampler): replace(sampler, cache_polynomial=polynomial) for sampler in self._samplers}
        self._samplers = [fitted[id(sampler)] for sampler in self._samplers]
        return quality

    def _read_kept(self, sampler: VideoSampler, path: Path, of: str) -> torch.Tensor | None:
        """Return latents that an earlier run left, on all ranks of the video."""
        video, latents = self._groups.video, None
        if video.rank == 0 and path.exists():
            latents, described = load_latents(path)
            latents = latents if described.get("of") == of else None
        if video.gather_text("" if latents is None else "kept")[0] == "":
            return None
        shape = (1, self._trained.bundle.tokenizer.channels, *sampler.latent_size)
        latents_BCTHW = (torch.zeros(shape) if latents is None else latents).to(video.device)
        video.broadcast_([latents_BCTHW])
        return latents_BCTHW

    def _sampler(self, index: int, layout: VideoLayout, samplers: dict[str, VideoSampler]) -> VideoSampler:
        config, request = self._configs[index].model_copy(update={"seed": 0}), self._requests[index]
        try:
            sampler = samplers.setdefault(
                config.model_dump_json(),
                VideoSampler(self._trained.bundle, self._trained.config.losses, config, layout),
            )
            sampler.check_first_frames(request.image_frames if request.image else 0)
            return sampler
        except UsageError as error:
            if len(self._requests) == 1:
                raise
            raise UsageError(f"video {index} of --prompts: {error}") from error

    def _tokens(self, index: int) -> int:
        return self._trained.bundle.dit.tokens(self._samplers[index].latent_size)


@contextmanager
def _time_stage(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - began, 3)


def _digest(image: Path) -> str:
    """Return the SHA-256 of a picture or video of first frames.

    Raises:
        UsageError: it cannot be read.
    """
    return hashlib.sha256(read_named(image, _MOST_IMAGE_BYTES, f"--image {image}")).hexdigest()
