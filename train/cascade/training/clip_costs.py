"""Costs of clips: from a measured cost model, or from FLOPs at a nominal rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.named_file import read_named_text
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, Links
from reelweave.train.cascade.costs.vae_cost import FittedVAECost
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.training.step_problem import ClipShape
from reelweave.train.config.parts import CascadesConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.tokenizer import COLOURS

MAX_COSTS_BYTES = 64 << 20

_NOMINAL = {
    "cuda": (4e14, Links()),
    "cpu": (2e10, Links(node_bytes_per_s=1e9, network_bytes_per_s=1e9)),
}
"""FLOP/s and bandwidths of a device: half an H100's peak, and a few CPU cores."""
_PATCHES = 8  # latent rows and columns of the clip on which a VAE's FLOPs are counted


@dataclass(frozen=True)
class MeasuredCosts:
    """Clip costs from a measured cost model.

    Attributes:
        costs: fitted cost model.
    """

    costs: CostModel

    def call_s(self, module: Module) -> float:
        if module == Module.DIT:
            return self.costs.dit.fixed_s
        if module == Module.TEXT:
            return self.costs.text.fixed_s if self.costs.text else 0.0
        return self.costs.vae.call_s if isinstance(self.costs.vae, FittedVAECost) else 0.0

    def dit_s(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        one_n, length_n = _lengths(clips)
        seconds_nK = self.costs.dit.seconds(one_n, length_n, degrees_K, self.costs.links)
        return seconds_nK - self.costs.dit.fixed_s

    def dit_bytes(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        one_n, length_n = _lengths(clips)
        return self.costs.dit.bytes_of_a_gpu(one_n, length_n, degrees_K) - self.costs.dit.states_bytes

    def vae_s(self, clips: Sequence[ClipShape]) -> Floats:
        if self.costs.vae is None:
            return np.zeros(len(clips))
        return self.costs.vae.seconds(*_videos(clips))[:, 0] - self.call_s(Module.VAE)

    def vae_bytes(self, clips: Sequence[ClipShape]) -> Floats:
        if self.costs.vae is None:
            return np.zeros(len(clips))
        return self.costs.vae.bytes_of_a_gpu(*_videos(clips))[:, 0] - self.costs.vae.memory_bytes

    @property
    def caption_s(self) -> float:
        return self.costs.text.sample_s if self.costs.text else 0.0

    def resident_bytes(self, module: Module) -> float:
        """Return resident bytes; the DiT's state shares the GPU with encoders."""
        encoder = {Module.TEXT: self.costs.text, Module.VAE: self.costs.vae}.get(module)
        return max(self.costs.dit.states_bytes, encoder.memory_bytes if encoder else 0.0)


@dataclass(frozen=True, eq=False)
class NominalCosts:
    """Clip costs from FLOPs at one nominal rate for all modules, with Ulysses communication in the DiT.

    Suffices to compare cascades with each other. Bytes are unknown and reported as 0.

    Attributes:
        bundle: modules of the run.
        config: configuration of cascades.
        device: device that they run on.
    """

    bundle: Bundle
    config: CascadesConfig
    device: torch.device

    def call_s(self, module: Module) -> float:  # noqa: ARG002 - as `ClipCosts` has it
        return 0.0

    def dit_s(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        rate, links = _NOMINAL[self.device.type]
        computed_n1 = np.array([[self._flops(clip) / rate] for clip in clips])
        length_n1 = _lengths(clips)[1][:, None]
        sent_nK = length_n1 * self._exchanged_bytes * (degrees_K - 1) / degrees_K**2
        return np.asarray(computed_n1 / degrees_K + sent_nK / links.bytes_per_s(degrees_K))

    def dit_bytes(self, clips: Sequence[ClipShape], degrees_K: IndexArray) -> Floats:
        return np.zeros((len(clips), len(degrees_K)))

    def vae_s(self, clips: Sequence[ClipShape]) -> Floats:
        if not any(clip.pixels for clip in clips):
            return np.zeros(len(clips))
        rate, _ = _NOMINAL[self.device.type]
        pixels_n = np.array(
            [clip.bucket.frames * clip.bucket.height * clip.bucket.width for clip in clips], float
        )
        return pixels_n * self._flops_of_a_pixel / rate

    def vae_bytes(self, clips: Sequence[ClipShape]) -> Floats:
        return np.zeros(len(clips))

    @property
    def caption_s(self) -> float:
        """Seconds per caption: one multiplication and one addition per weight and token."""
        weights = sum(parameter.numel() for parameter in self.bundle.text.parameters())
        return 2 * weights * self.config.text.max_text_tokens / _NOMINAL[self.device.type][0]

    def resident_bytes(self, module: Module) -> float:  # noqa: ARG002 - as `ClipCosts` has it
        return 0.0

    def _flops(self, clip: ClipShape) -> int:
        bucket, dit = clip.bucket, self.bundle.dit
        size = self.bundle.tokenizer.latent_size((bucket.frames, bucket.height, bucket.width))
        return dit.step_flops(size, self.config.text.max_text_tokens)

    @cached_property
    def _exchanged_bytes(self) -> float:
        """Bytes that Ulysses exchanges per token: 4 activations forward, 4 backward, per layer (docs/parallel.md)."""
        dit, bytes_of_a_value = self.bundle.dit, 2 if self.config.losses.dtype == "bfloat16" else 4
        return 8 * len(dit.repeated()) * dit.token_layers()[0].in_features * bytes_of_a_value

    @cached_property
    def _flops_of_a_pixel(self) -> float:
        frames, rows, columns = self.bundle.tokenizer.compression
        size = (1, COLOURS, 1 + frames, _PATCHES * rows, _PATCHES * columns)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.bundle.tokenizer.encode(torch.zeros(size, dtype=torch.uint8, device=self.device))
        operations: int = counter.get_total_flops()
        return operations / math.prod(size[2:])


def read_costs(path: Path) -> MeasuredCosts:
    """Read a measured cost model.

    Raises:
        UsageError: the file is unreadable or invalid; names the wrong key.
    """
    try:
        data = read_named_text(path, MAX_COSTS_BYTES, f"reelweave.train.cascade.costs={path}")
        return MeasuredCosts(CostModel.model_validate_json(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its beginning"
        raise UsageError(
            f"reelweave.train.cascade.costs={path} is no cost model, at {where}: {first['msg']}"
        ) from error


def _lengths(clips: Sequence[ClipShape]) -> tuple[IndexArray, IndexArray]:
    """Return B = 1 and S of each clip."""
    length_n = np.array([clip.length for clip in clips], np.int64)
    return np.ones_like(length_n), length_n


def _videos(clips: Sequence[ClipShape]) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return B = 1, sizes (frames, height, width) and degree 1 of each clip."""
    size_n3 = np.array(
        [(clip.bucket.frames, clip.bucket.height, clip.bucket.width) for clip in clips], np.int64
    )
    return np.ones(len(clips), np.int64), size_n3, np.array([1])
