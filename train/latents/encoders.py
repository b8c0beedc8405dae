"""Frozen encoders of a training configuration, applied to single samples."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.parts import EncodersConfig
from reelweave.train.latents.config import LatentsConfig
from reelweave.train.latents.cut_count import CutCount
from reelweave.train.models.build import build_tokenizer
from reelweave.train.models.encoders.text import build_text_encoder


class UnusableError(Exception):
    """A sample without valid latents or context; the text gives the reason."""


class Encoders:
    """Frozen tokenizer and, if contexts are stored, text encoder, on a GPU if there is one.

    Samples are encoded one by one, so that values are independent of other samples.

    Args:
        config: configuration of the encoders.
        stored: dtype of arrays, and threads.
        context: True if contexts are stored.

    Raises:
        UsageError: an encoder is missing, or a GPU is requested and missing.
    """

    def __init__(self, config: EncodersConfig, stored: LatentsConfig, context: bool) -> None:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("train.device=cuda, but torch finds no GPU here; use device=cpu or device=auto")
        on_gpu = torch.cuda.is_available() and config.device != "cpu"
        self.device = torch.device("cuda" if on_gpu else "cpu")
        self._config, self._stored = config, stored
        self._threads = stored.threads
        self.tokenizer = build_tokenizer(config.tokenizer).to(self.device).eval()
        self.text = build_text_encoder(config.text).to(self.device).eval() if context else None

    @property
    def device_name(self) -> str:
        """Name of the compute device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    @torch.no_grad()
    def latent(self, video_CTHW: NDArray[np.uint8]) -> NDArray[Any]:
        """Return latents of RGB pixels [3, T, H, W], equal to training on the fly: [C, T, H, W].

        Raises:
            UnusableError: they are not finite.
            RunError: they exceed the stored dtype.
        """
        video_BCTHW = torch.from_numpy(video_CTHW)[None].to(self.device)
        with _threads(self._threads):
            return self._array(self.tokenizer.encode(video_BCTHW)[0], "latents")

    @torch.no_grad()
    def context(self, caption: str) -> NDArray[Any]:
        """Return the context of a caption: [tokens, D], valid tokens only.

        Raises:
            UnusableError: it is not finite.
            RunError: it exceeds the stored dtype.
        """
        assert self.text is not None
        enabled = self._config.dtype == "bfloat16"
        with _threads(self._threads), torch.autocast(self.device.type, torch.bfloat16, enabled=enabled):
            context_BMD, mask_BM = self.text([caption])
        tokens = int(mask_BM.sum())
        # Padding follows the text, so that the number of tokens determines the mask.
        assert bool(mask_BM[0, :tokens].all())
        return self._array(context_BMD[0, :tokens], "text context")

    def count_cut(self, caption: str) -> CutCount:
        """Count a caption, and whether its context or its pooled vector lacks the end, beyond an encoder's tokens."""
        assert self.text is not None
        return CutCount(1, *(sum(cut([caption])) for cut in (self.text.cut, self.text.cut_pooled)))

    def encode_s(self, frames: int, height: int, width: int) -> float:
        """Return the seconds of encoding one sample: the median of several, after a warm-up."""
        video_CTHW = np.random.default_rng(0).integers(0, 256, (3, frames, height, width), np.uint8)
        durations_s = []
        for _ in range(1 + self._stored.measurements):
            began = time.perf_counter()
            self.latent(video_CTHW)  # ends with a copy to the CPU, which synchronizes
            durations_s.append(time.perf_counter() - began)
        return float(median(durations_s[1:]))

    def _array(self, values: torch.Tensor, what: str) -> NDArray[Any]:
        if not bool(values.isfinite().all()):
            raise UnusableError(f"its {what} hold numbers that are not finite")
        array: NDArray[Any] = values.float().cpu().numpy()
        if np.abs(array).max(initial=0) > np.finfo(self._stored.dtype).max:
            raise RunError(
                f"{what} reach {np.abs(array).max():.4g}, which {self._stored.dtype} cannot hold; set"
                " latents.dtype=float32"
            )
        return array.astype(self._stored.dtype)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Fix the number of threads, which determines the order of sums and thus their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
