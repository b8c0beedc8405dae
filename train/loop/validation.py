"""Validation: videos of fixed captions from the weights in training, on the ranks and in the layout of the run."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.record import ValidationRecord
from reelweave.train.loop.validation_config import ValidationConfig, ValidationPrompt
from reelweave.train.loop.validation_files import ValidationFiles
from reelweave.train.models.build import build_tokenizer
from reelweave.train.models.encoders.cut_captions import text_limits
from reelweave.train.models.encoders.stored import StoredLatents, StoredText
from reelweave.train.models.encoders.text import TextEncoder, build_text_encoder
from reelweave.train.models.encoders.tokenizer import LatentSizes, Tokenizer
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.models.published.experts import ALL_TIMES
from reelweave.train.models.published.frame_rate import file_fps, frame_rate
from reelweave.train.parallel.layouts.parallel_model import ParallelModel
from reelweave.train.parallel.mesh import DATA, MODEL
from reelweave.train.sampling.config import SEEDS
from reelweave.train.sampling.decode.fitting import FittingDecoder
from reelweave.train.sampling.decode.tiled import TiledDecoder
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.in_training.experts import expert_runners, other_expert_on, pair
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.prediction.first_frames import read_first_frames
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.step.ema import Ema

_log = logging.getLogger(__name__)

EncodeVideo = Callable[[NDArray[np.uint8], int], bytes]
"""Encoder of an RGB video [3, frames, height, width] at a number of frames per second to the bytes of an MP4."""


@dataclass(frozen=True)
class Validation:
    """Request for validation videos.

    Attributes:
        config: captions, interval, size and solver.
        encode: encoder of their files.
        fps: frames per second that the run samples clips at; None: at whatever rates they have.
        rows: captions and pictures of ``config``, read once.
    """

    config: ValidationConfig
    encode: EncodeVideo
    fps: float | None = None
    rows: tuple[ValidationPrompt, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.config.rows())


class Validator:
    """Validation of a run; its parameters, gradients and random state stay the same to the bit.

    Captions are divided over the data ranks. Ranks in lockstep (FSDP) without a caption of their own sample one again
    and drop it. The text encoder and the VAE are loaded for this alone where the run has stored latents and contexts.

    Args:
        validation: the request.
        train: configuration of the run.
        layout: model in the layout of the run.
        ema: average of its weights.
        out: folder of the run.

    Raises:
        UsageError: the size or guidance does not fit the model, there is no average, or the layout cannot sample.
    """

    def __init__(
        self, validation: Validation, train: TrainConfig, layout: ParallelModel, ema: Ema, out: Path
    ) -> None:
        self.every_steps = validation.config.every_steps
        self.before_first_step = validation.config.before_first_step
        self._fps = validation.config.fps or file_fps(frame_rate(train.model) or validation.fps)
        self._asked, self._layout, self._ema = validation, layout, ema
        self._weights = validation.config.weights or ("ema" if train.ema else "model")
        if self._weights == "ema" and not train.ema:
            raise UsageError(
                "validation.weights=ema: this run keeps no average; set train.ema, or weights=model"
            )
        # Where videos go, and how the ranks of the run's layout make one.
        ranks = layout.ranks
        self._data, self._video = ranks.along(*DATA), ranks.along(*MODEL)
        self._files = ValidationFiles(
            out, validation.config.model_copy(update={"fps": self._fps}), validation.rows, self._weights
        )
        self._tokenizer, self._loaded = _tokenizer(layout, train)
        decoder = FittingDecoder(TiledDecoder(self._tokenizer, self._video))
        self._experts = _experts(layout, train, validation.config)
        runner, low_noise = expert_runners(layout.bundle.dit, ranks, self._experts)
        self._sampler = VideoSampler(
            layout.bundle,
            train.losses,
            validation.config,
            VideoLayout(runner, decoder, video=self._video, low_noise=low_noise),
        )
        # What can be wrong is found before the first step; texts and pictures are encoded once.
        for row in validation.rows:
            self._sampler.check_first_frames(row.image_frames if row.image else 0)
        self._own = range(self._data.rank, len(validation.rows), self._data.size)
        self._given = self._encode_pictures()
        self._warn_of_cut(layout.bundle.text)
        self._stored_text = self._encode_now(train) if isinstance(layout.bundle.text, StoredText) else {}

    def run(self, step: int, log: RunLog) -> None:
        """Sample all captions behind a step and publish their files; a collective of all ranks."""
        began, world = time.monotonic(), self._layout.ranks.world
        on_first(world, lambda: self._files.begin(step))
        # Ranks in lockstep gather weights together, so that all make as many videos.
        missing = self._layout.missing_rounds(len(self._own))
        with self._restore_afterwards(), self._use_averages():
            self._layout.join_texts(self._layout.missing_texts(len(self._own) + missing))
            for index in self._own:
                self._make(step, index)
            for _ in range(missing):
                self._denoise(self._own[0] if self._own else 0)
        self._layout.refresh()
        self._leave()
        world.barrier()
        if world.rank == 0:
            seconds = time.monotonic() - began
            record, pictures = self._files.publish(step)
            message = record.pop("said")
            log.write(ValidationRecord(step, record | {"seconds": seconds}, pictures))
            log.say(f"step {step}: {message} in {self._files.folder(step)}, {seconds:.1f} s")

    def _leave(self) -> None:
        """Bring the expert that is not in training back to the host, unless ranks hold parts of it."""
        if self._experts is None:
            return
        for dit in (self._experts.high_noise, self._experts.low_noise):
            if dit is not self._layout.bundle.dit and not isinstance(dit, FSDPModule):
                dit.to("cpu")

    def _make(self, step: int, index: int) -> None:
        """Sample one caption, and write its video or the reason why there is none."""
        try:
            latents_BCTHW = self._denoise(index)
        except RunError as error:  # the same on all ranks of the video: they hold the same latents
            if self._video.rank == 0:
                self._files.write_failure(step, index, first_line(error))
            return
        video_BCTHW = self._decode(latents_BCTHW)
        if video_BCTHW is not None:
            video_CTHW = video_BCTHW[0].cpu().numpy()
            self._files.add(step, index, video_CTHW, self._asked.encode(video_CTHW, self._fps))

    def _denoise(self, index: int) -> torch.Tensor:
        device = self._layout.ranks.world.device
        stored = self._stored_text.get(index)
        passes = (
            [Conditions(*(part.to(device) for part in each)) for each in stored]
            if stored
            else self._sampler.encode([self._asked.rows[index].prompt])
        )
        first_frames = self._given.get(index)
        return self._sampler.denoise(
            passes,
            [(self._asked.config.seed + index) % SEEDS],
            first_frames_BCTHW=None if first_frames is None else first_frames.to(device),
        )

    def _decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        if self._loaded:
            self._tokenizer.to(latents_BCTHW.device)
        video_BCTHW = self._sampler.decode(latents_BCTHW)
        if self._loaded:
            self._tokenizer.to("cpu")
        return video_BCTHW

    def _warn_of_cut(self, text: TextEncoder) -> None:
        captions = [*(row.prompt for row in self._asked.rows), self._asked.config.negative_prompt]
        for limit in text_limits(text) if self._layout.ranks.world.rank == 0 else ():
            if count := sum(limit.cut(captions)):
                _log.warning(
                    "validation: %d of its captions have more than %s = %d tokens; the rest is cut off",
                    count,
                    limit.key,
                    limit.tokens,
                )

    def _encode_now(self, train: TrainConfig) -> dict[int, list[Conditions]]:
        """Return the conditions of this rank's captions, on the host, from a text encoder that is then dropped."""
        bundle, device = self._layout.bundle, self._layout.ranks.world.device
        stored = bundle.text
        with torch.random.fork_rng(devices=[]):
            bundle.text = build_text_encoder(train.text).to(device).eval()
        self._warn_of_cut(bundle.text)
        try:
            return {
                index: [
                    Conditions(*(part.cpu() for part in each))
                    for each in self._sampler.encode([self._asked.rows[index].prompt])
                ]
                for index in (self._own or range(1))
            }
        finally:
            bundle.text = stored

    def _encode_pictures(self) -> dict[int, torch.Tensor]:
        """Return the latents of the pictures that this rank's videos begin with, on the host."""
        config, bundle, device = self._asked.config, self._layout.bundle, self._layout.ranks.world.device
        rows = {n: self._asked.rows[n] for n in (self._own or range(1)) if self._asked.rows[n].image}
        if not rows:
            return {}
        original, bundle.tokenizer = bundle.tokenizer, self._tokenizer.to(device)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                return {
                    index: self._sampler.encode_frames(
                        read_first_frames(
                            row.image,
                            row.image_frames,
                            (config.height, config.width),
                            f"validation.prompts: image {row.image}",
                        )
                    ).cpu()
                    for index, row in rows.items()
                    if row.image is not None
                }
        finally:
            bundle.tokenizer = original
            if self._loaded:
                self._tokenizer.to("cpu")

    @contextmanager
    def _use_averages(self) -> Iterator[None]:
        """Sample from the averages, if they are asked for."""
        if self._weights == "model":
            yield
            return
        with self._ema.swap(self._layout.weights):
            self._layout.refresh()
            yield

    @contextmanager
    def _restore_afterwards(self) -> Iterator[None]:
        """Restore random state and modes of the modules; compile nothing for shapes that training does not have."""
        device, bundle = self._layout.ranks.world.device, self._layout.bundle
        modes = {module: module.training for module in bundle.modules()}
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            torch.compiler.set_stance("force_eager"),
            torch.no_grad(),
        ):
            bundle.eval()
            try:
                yield
            finally:
                for module, mode in modes.items():
                    module.training = mode
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _experts(layout: ParallelModel, train: TrainConfig, config: ValidationConfig) -> Experts | None:
    """Return both experts, of which the run trains one; None: its model is for all times."""
    dit = layout.bundle.dit
    if dit.times == ALL_TIMES:
        if config.lora_2 or config.checkpoint_2:
            raise UsageError(
                "validation.lora_2 and checkpoint_2 are of a second expert, which this model lacks"
            )
        return None
    with torch.random.fork_rng(devices=[]):
        other, _ = other_expert_on(layout.bundle, train, layout.ranks, config.lora_2, config.checkpoint_2)
    # Optimizers hold the trained expert's tensors: it stays on the device.
    return pair(dit, other, train.model, layout.ranks.world.device, together=True)


def _tokenizer(layout: ParallelModel, train: TrainConfig) -> tuple[Tokenizer, bool]:
    """Return a tokenizer that decodes, and whether it was loaded for that, on the host."""
    tokenizer = layout.bundle.tokenizer
    if not isinstance(tokenizer, StoredLatents | LatentSizes):
        return tokenizer, False
    with torch.random.fork_rng(devices=[]):
        return build_tokenizer(train.tokenizer), True
