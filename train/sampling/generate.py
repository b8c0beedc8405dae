"""Generation of videos from captions with a trained model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.parts import LossConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.published.experts import ALL_TIMES
from reelweave.train.objectives.first_frames import picture_video
from reelweave.train.objectives.level import solve
from reelweave.train.sampling.cache.block_cache import BlockCache
from reelweave.train.sampling.config import SEEDS, SampleConfig
from reelweave.train.sampling.experts.by_time import ByTime
from reelweave.train.sampling.layout import Divide, VideoLayout
from reelweave.train.sampling.prediction.first_frames import check_given, check_trained, pass_channels
from reelweave.train.sampling.prediction.guidance import Guided, pass_weights
from reelweave.train.sampling.prediction.predictor import Conditions, ModelRunner, Predictor, SchedulePoint
from reelweave.train.sampling.ranks.agreement import check_same
from reelweave.train.sampling.solvers.noise import starting_noise, step_noise
from reelweave.train.sampling.solvers.ode import sample
from reelweave.train.sampling.solvers.schedule import sampling_levels


@torch.no_grad()
def generate(
    bundle: Bundle,
    trained: LossConfig,
    config: SampleConfig,
    captions: Sequence[str],
    progress: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Generate a video for each caption in this process, uint8 RGB [B, 3, frames, height, width].

    Video number b starts from the noise of seed + b, the same on any device and in any batch.

    Args:
        bundle: model, on the compute device.
        trained: configuration of the losses that it was trained with.
        config: requested size, solver and guidance.
        captions: B captions.
        progress: called after each step.

    Raises:
        UsageError: the size does not match the model, the objective has fewer levels than steps, or
            guidance is requested from a model without caption dropout.
        RunError: a prediction is not finite.
    """
    sampler = VideoSampler(bundle, trained, config, VideoLayout.alone(bundle))
    seeds = [(config.seed + index) % SEEDS for index in range(len(captions))]
    video = sampler.decode(sampler.denoise(sampler.encode(captions), seeds, progress))
    assert video is not None  # a single process is the first rank
    return video


@dataclass(frozen=True, eq=False)
class VideoSampler:
    """Stages of sampling: text, denoising, decode. Each is a collective of the ranks of a video, with equal arguments.

    Attributes:
        bundle: model, on the compute device.
        trained: configuration of the losses that it was trained with.
        config: requested size, solver and guidance.
        layout: division of the work over ranks.
        cache_polynomial: fitted polynomial of a `teacache` (`BlockCache.fit`); None: the identity.

    Raises:
        UsageError: the size does not match the model, or guidance is requested from a model without caption
            dropout.
    """

    bundle: Bundle
    trained: LossConfig
    config: SampleConfig
    layout: VideoLayout
    cache_polynomial: Sequence[float] | None = None

    def __post_init__(self) -> None:
        config, empty = self.config, not self.config.negative_prompt
        if len(self._weights) > 1 and empty and self.trained.objective.caption_dropout == 0:
            raise UsageError(
                f"guidance={config.guidance:g} needs a model that knows videos without captions, but this one"
                " was trained with objective.caption_dropout=0; sample with guidance=1, or with a negative prompt"
            )
        ignored = {"negative_prompt": config.negative_prompt, "rescale": config.rescale}
        if len(self._weights) == 1 and (named := next((name for name in ignored if ignored[name]), None)):
            raise UsageError(
                f"guidance=1 runs the caption alone, and {named} would do nothing: leave {named} out, or take other"
                " guidance"
            )
        self._check_experts()
        self.bundle.dit.grid(self.latent_size)

    @property
    def device(self) -> torch.device:
        low_noise = self.layout.low_noise
        return low_noise.experts.device if low_noise else next(self.bundle.dit.parameters()).device

    @property
    def latent_size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the latents."""
        config = self.config
        return self.bundle.latent_size((config.frames, config.height, config.width))

    @torch.no_grad()
    def encode(self, captions: Sequence[str], negatives: Sequence[str] | None = None) -> Sequence[Conditions]:
        """Return the conditions of each pass.

        Args:
            captions: B captions.
            negatives: caption that guidance leads each video away from; None: that of the configuration.
        """
        negatives = negatives or [self.config.negative_prompt] * len(captions)
        texts = [*captions, *list(negatives) * (len(self._weights) - 1)]
        with self._autocast():
            context_BMD, mask_BM = self.bundle.text(texts)
        parts = (context_BMD.split(len(captions)), mask_BM.split(len(captions)))
        return [Conditions(*pair) for pair in zip(*parts, strict=True)]

    def check_first_frames(self, frames: int) -> None:
        """Check that the model makes videos from this number of given frames; 0: from text alone.

        Raises:
            UsageError: it was not trained for it.
        """
        trained, config = self.trained.first_frames, self.config
        check_trained(trained, frames > 0, config.image_guidance is not None)
        if frames:
            num_given = self.bundle.tokenizer.latent_size((frames, config.height, config.width))[0]
            check_given(trained, num_given, self.latent_size[0])

    @torch.no_grad()
    def encode_frames(self, frames_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return the latents of the first frames that the videos begin with, [B, C, T, H, W].

        For a model with ``reads_picture``, these are latents of whole videos.

        Args:
            frames_BCTHW: uint8 RGB of the videos' size, 1 + a multiple of the tokenizer's frames.

        Raises:
            UsageError: the model was trained without given frames or with fewer, or the frames do not fit.
        """
        config, (frames, *size) = self.config, frames_BCTHW.shape[2:]
        if size != [config.height, config.width]:
            raise UsageError(
                f"first frames of {size[0]}x{size[1]} pixels do not begin a video of {config.height}x{config.width}"
            )
        self.check_first_frames(frames)
        frames_BCTHW = frames_BCTHW.to(self.device)
        if self.bundle.dit.reads_picture:
            frames_BCTHW = picture_video(frames_BCTHW, config.frames)
        return self.bundle.tokenizer.encode(frames_BCTHW)

    @torch.no_grad()
    def denoise(
        self,
        passes: Sequence[Conditions],
        seeds: Sequence[int],
        progress: Callable[[], None] = lambda: None,
        first_frames_BCTHW: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return clean latents, [B, C, T, H, W], the same on every rank.

        Args:
            passes: conditions, see `encode`.
            seeds: seed of the noise of each of B videos.
            progress: called after each step.
            first_frames_BCTHW: latents of given first frames, see `encode_frames`; None: text to video.

        Raises:
            UsageError: the objective has fewer levels than steps, or the model needs first frames.
            RunError: a prediction is not finite, or ranks of the video have different noise or latents.
        """
        bundle, size, device = self.bundle, self.latent_size, self.device
        # Levels of the steps; a model in float64 is sampled in it, all others in float32.
        parameter = next(bundle.dit.parameters())
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        levels = sampling_levels(bundle.objective, self.config, math.prod(bundle.dit.grid(size)))
        points = list(zip(levels.signal.tolist(), levels.noise.tolist(), strict=True))
        timesteps, levels = levels.timestep_input, levels.to(device, dtype)
        if self.cache is not None:
            self.cache.clear()

        # Noise by seed, the same on every rank of a video.
        shape = (bundle.tokenizer.channels, *size)
        noise_BCTHW = starting_noise(seeds, shape).to(device, dtype)
        self._check_same(noise_BCTHW, "noise at the start")
        guides = self.config.image_guidance is not None
        channels = pass_channels(
            self.trained.first_frames, bundle.dit, len(passes), noise_BCTHW, first_frames_BCTHW, guides
        )
        predict = self._predictor(passes, channels, timesteps)

        # One step: predict in the model's dtype, solve in that of the latents.
        def estimate(x_BCTHW: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            point = SchedulePoint(index, len(points), levels[index])
            with self._autocast():
                prediction_BCTHW = predict(x_BCTHW, point)
            return solve(point.level, x_BCTHW, prediction_BCTHW)

        def noise(index: int) -> torch.Tensor:
            return step_noise(seeds, index, shape).to(device, dtype)

        latents_BCTHW = sample(
            estimate, points[0][1] * noise_BCTHW, points, self.config.solver, progress, noise
        )
        if not latents_BCTHW.isfinite().all():
            raise RunError(
                "the model's predictions are not finite; take an earlier checkpoint, or less guidance"
            )
        self._check_same(latents_BCTHW, "latents at the end")
        if first_frames_BCTHW is not None and bundle.dit.keeps_given:
            # Its predictions lead there, to rounding; with timesteps cut to whole numbers, to a thousandth.
            latents_BCTHW[:, :, : first_frames_BCTHW.shape[2]] = first_frames_BCTHW
        return latents_BCTHW

    @torch.no_grad()
    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        """Return uint8 RGB [B, 3, frames, height, width] on the first rank of the video, None on others."""
        video_BCTHW = self.layout.decoder(latents_BCTHW)
        if video_BCTHW is None:
            return None
        return ((video_BCTHW + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)

    @cached_property
    def cache(self) -> BlockCache | None:
        """Cache of the model's blocks; None: none is configured."""
        if self.config.cache is None:
            return None
        sequence = self.layout.sequence or World(0, 1, self.device)
        return BlockCache(self.bundle.dit, self.config.cache, sequence, self.cache_polynomial or (1.0, 0.0))

    @property
    def _weights(self) -> Sequence[float]:
        return self._both_weights[0]

    @property
    def _both_weights(self) -> tuple[Sequence[float], Sequence[float]]:
        """Weights of the passes for much noise, and for little."""
        config = self.config
        return pass_weights(config.guidance, config.guidance_2, config.image_guidance)

    def _predictor(
        self, passes: Sequence[Conditions], channels: Sequence[torch.Tensor] | None, timesteps: torch.Tensor
    ) -> Predictor:
        layout, low_noise = self.layout, self.layout.low_noise
        weights, low_weights = self._both_weights
        predict = self._guide(layout.runner, layout.divided, passes, weights, channels)
        if low_noise is None:
            return predict
        second = self._guide(low_noise.runner, low_noise.divided, passes, low_weights, channels)
        return ByTime(predict, second, (timesteps >= low_noise.experts.boundary).tolist())

    def _guide(
        self,
        runner: ModelRunner,
        divided: Divide | None,
        passes: Sequence[Conditions],
        weights: Sequence[float],
        channels: Sequence[torch.Tensor] | None,
    ) -> Predictor:
        config, layout = self.config, self.layout
        guided = Guided(
            runner,
            passes,
            weights,
            layout.cfg,
            config.batched,
            config.rescale,
            channels,
            self.cache,
        )
        return guided if divided is None else divided(guided)

    def _check_experts(self) -> None:
        """Check that the layout has both experts of a model that is one, and no options that they lack."""
        config, alone = self.config, self.layout.low_noise is None
        if alone and self.bundle.dit.times != ALL_TIMES:
            low, high = self.bundle.dit.times
            raise UsageError(
                f"this model is one of two experts, for times {low:g} to {high:g}, and a video needs both: make it with"
                " `reelweave sample`, which loads the other one, too"
            )
        if alone and config.guidance_2 is not None:
            raise UsageError("guidance_2 is for a model with two experts, and this is one for all times")
        if not alone and config.cache is not None:
            raise UsageError(
                "a cache keeps the blocks of one model, and this one has two experts: leave it out"
            )

    def _check_same(self, tensor: torch.Tensor, what: str) -> None:
        """Check that all ranks of the video hold the same bits."""
        if self.layout.video is not None:
            check_same(tensor, self.layout.video, what)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.trained.dtype == "bfloat16")
