"""Interface of denoisers, built-in and published."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import TextConfig
from reelweave.train.measure.flops import Flops
from reelweave.train.models.attention.patches import Patch
from reelweave.train.models.attention.positions import Window, box_tokens
from reelweave.train.objectives.first_frames import first_frame_condition


class ComputeTotals(NamedTuple):
    """Total tokens and FLOPs of samples.

    Attributes:
        tokens: number of text and video tokens, without padding.
        flops: FLOPs of forward and backward.
    """

    tokens: int
    flops: int


InputRows = Literal["video", "text", "both", "sample"]
"""Rows of a layer's input: video tokens, text tokens, both, or one per sample."""


class Denoiser(nn.Module):
    """Model that predicts, for noisy latents of any size, a tensor of the same shape.

    Attributes:
        patch: latent frames, rows and columns per token.
        objectives: names of the supported objectives.
        lora_targets: default layers for LoRA.
        joint_text: True if text is part of the sequence of self-attention, and blocks update it.
        adapted: True if only LoRA adapters are trained (`reelweave.train.models.lora`).
        start_notes: lines about the file that adapters begin with (`lora.start_from`).
        unknown_targets: message that names the entries of ``lora.targets`` without a layer; empty: each has one.
        adapter_weights: number of their weights by the rows that they are applied to.
        condition_channels: number of channels that inputs have behind the noisy latents.
        reads_picture: True if these are made from the latents of
            `reelweave.train.objectives.first_frames.picture_video`, and not from those of the clip.
        keeps_given: True if predictions keep given latent frames as they are, without an error.
        pooled_width: number of pooled caption values in the first row of the context; 0: that row is a token.
        times: least and greatest time that the model predicts at, in the unit of flow matching.
    """

    patch: Patch
    objectives: ClassVar[tuple[str, ...]] = ("flow", "edm", "ddpm")
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "key", "value", "out")
    joint_text: ClassVar[bool] = False
    adapted: bool = False
    start_notes: Sequence[str] = ()
    unknown_targets: str = ""
    adapter_weights: Mapping[InputRows, int] = MappingProxyType({})
    condition_channels: int = 0
    reads_picture: bool = False
    keeps_given: bool = False
    pooled_width: int = 0
    times: tuple[float, float] = (0.0, 1.0)

    def notices(self) -> list[str]:
        """Return a line for each key of the configuration that a published model does not read."""
        return []

    def compare_text(self, text: TextConfig) -> list[str]:  # noqa: ARG002 - for published models
        """Return a line for each setting of text that differs from what the model was trained with."""
        return []

    def forward(
        self,
        x_BCTHW: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W].

        Args:
            x_BCTHW: noisy latents, and condition channels behind them.
            t_B: timesteps in [0, 1].
            context_BMD: text embeddings, [B, M, text_width].
            mask_BM: True for valid text tokens, bool; at least one per sample. None: all.
            window: place of the latents in a larger video, of which they keep the positions; None: they are whole.

        Raises:
            UsageError: the model supports no windows.
        """
        raise NotImplementedError

    def condition(self, latents_BCTHW: torch.Tensor, num_given: Sequence[int]) -> torch.Tensor:
        """Return the condition channels of given first frames, [B, condition_channels, T, H, W].

        Args:
            latents_BCTHW: clean latents, of which given frames are read; see `reads_picture`.
            num_given: number of given latent frames of each sample.
        """
        return first_frame_condition(latents_BCTHW, num_given)

    def forward_packed(
        self,
        latents: Sequence[torch.Tensor],
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
    ) -> list[torch.Tensor]:
        """Return predictions for samples of any shapes, run as one sequence without padding; [C, T, H, W] each.

        A sample's prediction equals that of `forward` for the sample alone.

        Args:
            latents: noisy latents of B samples, [C, T, H, W] each.
            t_B: timesteps, as in `forward`.
            context_BMD: text embeddings, as in `forward`.
            mask_BM: mask, as in `forward`; on the CPU, or on the device, which the host then waits for.

        Raises:
            UsageError: the model supports no packs, so that stream.regime must not be pack.
        """
        raise NotImplementedError

    def flops(self, latent_size: Sequence[int], text_tokens: int) -> Flops:
        """Return the FLOPs of one sample, alone or in a pack.

        Args:
            latent_size: frames, rows and columns of its latents.
            text_tokens: number of tokens of its caption.
        """
        raise NotImplementedError

    def repeated(self) -> Sequence[nn.Module]:
        """Return the repeated blocks in order, the unit of sharding, compilation and checkpointing."""
        raise NotImplementedError

    def full_precision(self) -> Sequence[nn.Module]:
        """Return the layers outside repeated blocks that run in float32 at any dtype of activations."""
        return ()

    def float32_vectors(self) -> Sequence[nn.Parameter]:
        """Return further small parameters, of any layer, whose values stay float32 at any dtype of activations."""
        return ()

    def float32_parameters(self) -> list[nn.Parameter]:
        """Return all parameters whose values stay float32 at any dtype of activations."""
        layers = [parameter for layer in self.full_precision() for parameter in layer.parameters()]
        return [*layers, *self.float32_vectors()]

    def frozen_layers(self) -> list[nn.Linear]:
        """Return the linear layers of repeated blocks that are not trained, each once; adapters are none of them."""
        layers = (layer for block in self.repeated() for layer in block.modules())
        return [
            layer
            for layer in dict.fromkeys(layers)
            if isinstance(layer, nn.Linear) and not layer.weight.requires_grad
        ]

    def token_layers(self) -> Sequence[nn.Linear]:
        """Return the linear layers of repeated blocks applied to every video token, without adapters.

        Excludes layers with few rows: those of per-sample vectors (modulation), and of text alone.
        """
        inside = {id(layer) for block in self.repeated() for layer in block.modules()}
        named = ((name, layer) for name, layer in self.named_modules() if id(layer) in inside)
        return [
            layer
            for name, layer in named
            if isinstance(layer, nn.Linear)
            and "lora_" not in name
            and self.takes_tokens(name.removesuffix(".base_layer"))
        ]

    def takes_tokens(self, name: str) -> bool:
        """Return True if the layer of this name is applied to video tokens, with or without text."""
        raise NotImplementedError

    def grid(self, latent_size: Sequence[int]) -> tuple[int, int, int]:
        """Return the number of tokens along time, rows and columns for latents of size (frames, rows, columns).

        Raises:
            UsageError: the latents do not divide into whole patches.
        """
        (T, H, W), (t, h, w) = latent_size, self.patch
        if T % t or H % h or W % w:
            raise UsageError(f"latents of {T}x{H}x{W} do not divide into model.patch={t, h, w}")
        return T // t, H // h, W // w

    def place_window(
        self, latent_size: Sequence[int], window: Window
    ) -> tuple[tuple[int, int, int], torch.Tensor]:
        """Return the token grid of the whole video and the index in it of each of a window's tokens, int64 [L].

        Args:
            latent_size: frames, rows and columns of the window's latents.
            window: their place.

        Raises:
            UsageError: the window does not consist of whole patches of the video.
        """
        size, grid, start = self.grid(latent_size), self.grid(window.full_size), self.grid(window.start)
        if any(a < 0 or a + n > N for a, n, N in zip(start, size, grid, strict=True)):
            raise UsageError(
                f"a window of {tuple(latent_size)} latents at {window.start} is not within {window.full_size}"
            )
        return grid, box_tokens(start, size, grid)

    def tokens(self, latent_size: Sequence[int]) -> int:
        """Return the number of video tokens of one sample."""
        return math.prod(self.grid(latent_size))

    def work(self, latent_sizes: Sequence[Sequence[int]], mask_BM: torch.Tensor) -> ComputeTotals:
        """Return total tokens and FLOPs of samples, without padding.

        Args:
            latent_sizes: frames, rows and columns of each sample's latents.
            mask_BM: True for valid text tokens; on the CPU, or on the device, which the host then waits for.
        """
        samples = list(zip(latent_sizes, mask_BM.sum(dim=1).tolist(), strict=True))
        tokens = sum(self.tokens(size) + text for size, text in samples)
        return ComputeTotals(tokens, sum(self.step_flops(size, text) for size, text in samples))

    def step_flops(self, latent_size: Sequence[int], text_tokens: int) -> int:
        """Return the FLOPs of forward and backward of one sample, for the weights that are trained.

        Adapters are counted like any trained layer: forward, gradients of weights and gradients of inputs.

        Args:
            latent_size: frames, rows and columns of its latents.
            text_tokens: number of tokens of its caption.
        """
        counted = self.flops(latent_size, text_tokens)
        if not self.adapted:
            return counted.training
        lengths = self.lengths(latent_size, text_tokens)
        adapters = sum(2 * lengths[rows] * count for rows, count in self.adapter_weights.items())
        return counted.adapting + 3 * adapters

    def lengths(self, latent_size: Sequence[int], text_tokens: int) -> dict[InputRows, int]:
        """Return the number of rows of each kind in one sample; arguments as in `flops`."""
        video = self.tokens(latent_size)
        return {"video": video, "text": text_tokens, "both": video + text_tokens, "sample": 1}

    def layer_rows(self, name: str) -> InputRows:
        """Return the rows that the layer of this name is applied to."""
        raise NotImplementedError
