"""Base of diffusers adapters: loading, fixed-length text, FLOPs.

Each family is a small subclass in its own module that calls the model as its pipeline does.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import TextConfig
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.kernels.patch.patcher import has_fused_blocks, patch
from reelweave.train.measure.flops import Flops
from reelweave.train.models.attention.patches import Patch
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.denoiser import Denoiser, InputRows
from reelweave.train.models.dit import TokenLayout, tokens
from reelweave.train.models.precision.narrow import narrow_layers
from reelweave.train.models.published.context_parallel import Placed, Rotation, in_a_row, select_positions
from reelweave.train.models.published.folder import description
from reelweave.train.models.published.names.native import NativeNames
from reelweave.train.models.published.size import PublishedSize
from reelweave.train.models.published.vae_base import PublishedVae
from reelweave.train.models.published.weights import PublishedModel

_TEXT_TOKENS = 512
"""Length that most pipelines pad T5's output to."""


class DiffusersDenoiser(Denoiser):
    """Transformer of diffusers that predicts as within its pipeline.

    Args:
        config: configuration of the model.
        folder: folder with config.json and weights.
        channels: channels of the latents.
        text_width: width of the text context.
        first_frames: first frames that the model is given; None: none.

    Raises:
        UsageError: it cannot be loaded, or does not match the latents, the text or the configuration.

    Attributes:
        source: class in diffusers.
        time_unit: factor from the objective's timestep input to the model's.
        stem: name pattern of layers that read latents, times and text, whose input gradients are not needed.
        rows: name patterns of layers with the rows they apply to; the first match counts, default video.
        blocks: names of the lists of repeated blocks.
        token_dim: dimension of the tokens in the cosines and sines of ``model.rope``.
        keys: keys of the configuration that only some families read, and this one does.
        rate: frames per second that its models were trained at; None: none is known, or see `frame_rate`.
        vae: VAE of its pipeline.
        sizes: published transformers by name, for plans without their files.
        names: names of its weights in the original repository; None: none are known, or see `names_of`.
        native_names: those names of this model.
        model: the diffusers model.
        largest: maximum number of tokens along time, rows and columns.
    """

    source: ClassVar[str]
    time_unit: ClassVar[float] = 1000.0
    lora_targets: ClassVar[tuple[str, ...]] = ("to_q", "to_k", "to_v", "to_out.0")
    stem: ClassVar[str]
    rows: ClassVar[Sequence[tuple[str, InputRows]]]
    blocks: ClassVar[tuple[str, ...]] = ("transformer_blocks",)
    token_dim: ClassVar[int] = 0
    keys: ClassVar[frozenset[str]] = frozenset({"text_tokens"})
    rate: ClassVar[float | None] = None
    vae: ClassVar[type[PublishedVae]]
    sizes: ClassVar[Mapping[str, PublishedSize]] = MappingProxyType({})
    names: ClassVar[NativeNames | None] = None

    largest: tuple[float, float, float] = (math.inf, math.inf, math.inf)

    def __init__(
        self,
        config: DiffusersConfig,
        folder: Path,
        channels: int,
        text_width: int,
        first_frames: FirstFramesConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.native_names = self.names_of(description(folder, "model.name"))
        self._published = PublishedModel(config, folder, self.source, self.native_names)
        self.model: Any = self._published.structure()
        self.patch = self._patch()
        # Refuse what does not fit, before weights are read.
        self._check_channels(channels, first_frames)
        self._fits("text", text_width, self._text_width())
        if config.patch != self.patch:
            raise UsageError(f"model.patch must be {list(self.patch)}: that of {config.name}")
        if torch.get_default_device().type == "meta":
            self.model.to("meta")
        else:
            self._published.load_(self.model)
        if config.fused and has_fused_blocks(self.model):
            patch(self.model)
        # What stays in float32, and counts of weights that costs are made of.
        from reelweave.train.models.published.float32 import keep_float32

        self._float32 = tuple(keep_float32(self.model))
        self._weights = self._count_weights("")
        self._stem_weights = self._count_weights(self.stem)
        self._prepare()

    def forward(
        self,
        x_BCTHW: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        window: Window | None = None,
    ) -> torch.Tensor:
        """Return the prediction; t_B is the objective's timestep input in its own unit."""
        if window is not None:
            raise UsageError(f"{self.source} takes whole videos alone: sample without Latent Parallelism")
        self.grid(x_BCTHW.shape[2:])
        mask_BM = all_valid(context_BMD) if mask_BM is None else mask_BM
        return self._predict(x_BCTHW, t_B * self.time_unit, context_BMD, mask_BM)

    @classmethod
    def frame_rate(cls, config: DiffusersConfig, described: Mapping[str, Any]) -> float | None:  # noqa: ARG003
        """Return the frames per second that a model was trained at; None: none is known.

        Args:
            config: configuration of the model.
            described: its config.json.
        """
        return cls.rate

    @classmethod
    def names_of(cls, described: Mapping[str, Any]) -> NativeNames | None:  # noqa: ARG003
        """Return the names of a model's weights in the original repository; None: none are known.

        Args:
            described: its config.json.
        """
        return cls.names

    def notices(self) -> list[str]:
        """Return a line for each key that is set and not read, and for blocks that stay diffusers' own."""
        unread = [
            f"model.{key}={value} is not read: {self.source} has nothing that it is about; leave it out"
            for key in ("boundary", "text_tokens", "guidance", "fps")
            if (value := getattr(self.config, key)) is not None and key not in self.keys
        ]
        if self.config.fused and not has_fused_blocks(self.model):
            unread.append(
                f"model.fused: {self.source} has no fused blocks and runs as diffusers has it; set it to false"
            )
        return [*self.start_notes, *unread]

    def compare_text(self, text: TextConfig) -> list[str]:
        if isinstance(text, TransformersTextConfig) and text.padding == "text":
            return [
                f"text.padding=text: {self.source} was trained without the encoder's padding; set it to mask"
            ]
        return []

    def initial_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and published value of each parameter and buffer but adapters.

        Values are mapped, in the dtype of their file.
        """
        named = chain(self.named_parameters(), self.named_buffers(), narrow_layers(self).items())
        names = {name.replace(".base_layer.", "."): name for name, _ in named}
        return ((names[f"model.{name}"], tensor) for name, tensor in self._published.tensors())

    def forward_packed(self, *_: Any, **__: Any) -> list[torch.Tensor]:
        """Raise an error, since diffusers models take a batch of one shape."""
        raise self.no_packs()

    def no_packs(self) -> UsageError:
        """Return the error for packs."""
        return UsageError(f"{self.source} takes no packs: choose a stream.regime other than pack")

    def flops(self, latent_size: Sequence[int], text_tokens: int) -> Flops:
        """Return the FLOPs of one sample, with text at the length that the model gets."""
        lengths = self.lengths(latent_size, text_tokens)
        layers, stem = (
            sum(2 * lengths[rows] * count for rows, count in weights.items())
            for weights in (self._weights, self._stem_weights)
        )
        attention = self._attention(lengths["video"], lengths["text"])
        return Flops(layers + attention, 2 * (layers + attention) - stem, attention)

    def lengths(self, latent_size: Sequence[int], text_tokens: int) -> dict[InputRows, int]:
        return super().lengths(latent_size, self.text_length or text_tokens - bool(self.pooled_width))

    def repeated(self) -> Sequence[nn.Module]:
        return [block for name in self.blocks for block in getattr(self.model, name)]

    def full_precision(self) -> Sequence[nn.Module]:
        return self._float32

    def float32_vectors(self) -> Sequence[nn.Parameter]:
        from reelweave.train.models.published.float32 import vectors_in_float32

        return vectors_in_float32(self.model, self._float32)

    def takes_tokens(self, name: str) -> bool:
        return self.layer_rows(name) in ("video", "both")

    def layer_rows(self, name: str) -> InputRows:
        return self._rows(name.removeprefix("model."))

    def grid(self, latent_size: Sequence[int]) -> tuple[int, int, int]:
        """Return the token grid; raises an error beyond the model's positions."""
        grid = super().grid(latent_size)
        if any(size > limit for size, limit in zip(grid, self.largest, strict=True)):
            raise UsageError(
                f"{self.source} has positions for {self.largest} tokens along time, rows and columns, not for {grid}:"
                " take fewer frames or a smaller size"
            )
        return grid

    @property
    def full_heads(self) -> int:
        """Number of heads of attention over all tokens."""
        return int(self.model.config.num_attention_heads)

    def denoise(
        self,
        values_BLV: torch.Tensor,
        t_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor | None,
        grids: Sequence[tuple[int, int, int]],
        pack: TokenLayout,
    ) -> torch.Tensor:
        """Predict some tokens of a batch of one grid, as in `reelweave.train.models.dit.DiT.denoise`.

        Raises:
            UsageError: the tokens are packed.
        """
        if pack.self_attend is None:
            raise self.no_packs()
        mask_BM = all_valid(context_BMD) if mask_BM is None else mask_BM
        x_BCTHW = in_a_row(values_BLV, self.patch)
        y_BCTHW = self._predict_part(x_BCTHW, t_B * self.time_unit, context_BMD, mask_BM, grids[0], pack)
        return tokens(y_BCTHW, self.patch)

    def text_in_sequence(self, mask_BM: torch.Tensor, parts: int) -> torch.Tensor | None:  # noqa: ARG002
        """Return the mask of text tokens within self-attention, [B, M]; None: text is a cross-attention source.

        Args:
            mask_BM: mask of the context, as in `forward`.
            parts: number of parts that text is cut into.
        """
        return None

    @property
    def text_length(self) -> int | None:
        """Fixed number of text tokens; None: as many as there are."""
        return self.config.text_tokens or _TEXT_TOKENS

    def fill_context(self, context_BMD: torch.Tensor, mask_BM: torch.Tensor) -> torch.Tensor:
        """Zero the context where the mask is false, and zero-pad it to [B, text_length, D].

        These models take no mask. Wan and Cosmos are trained with zeros up to a fixed length, which also makes
        a prediction independent of other captions in the batch.

        Raises:
            UsageError: the context is longer.
        """
        length, M = self.text_length or 0, context_BMD.shape[1]
        if length < M:
            raise UsageError(
                f"{self.source} takes {length} tokens of text and got {M}: lower text.max_text_tokens"
            )
        return F.pad(context_BMD * mask_BM[..., None], (0, 0, 0, length - M))

    def _predict(
        self, x_BCTHW: torch.Tensor, time_B: torch.Tensor, context_BMD: torch.Tensor, mask_BM: torch.Tensor
    ) -> torch.Tensor:
        """Return the prediction, [B, C, T, H, W], for times in the model's unit."""
        raise NotImplementedError

    def _predict_part(
        self,
        x_BCTHW: torch.Tensor,
        time_B: torch.Tensor,
        context_BMD: torch.Tensor,
        mask_BM: torch.Tensor,
        grid: tuple[int, int, int],
        pack: TokenLayout,
    ) -> torch.Tensor:
        """Return the prediction for patches in a row, [B, C, L * t, h, w].

        Here for models whose positions are those of ``model.rope``, which their blocks hand on to attention.

        Args:
            x_BCTHW: patches in a row.
            time_B: times, as in `_predict`.
            context_BMD: whole text.
            mask_BM: mask of the whole text.
            grid: token grid of the whole video.
            pack: layout of the local tokens.
        """
        assert pack.self_attend is not None, "checked by denoise"
        attend, local = pack.self_attend, (*(slice(None),) * self.token_dim, pack.local)

        def select(rotation: Rotation) -> Placed:
            cos, sin = rotation
            return Placed((cos[local], sin[local]), attend, pack.joint)

        with select_positions(self.model.rope, self._latent_size(grid), select):
            return self._predict(x_BCTHW, time_B, context_BMD, mask_BM)

    def _latent_size(self, grid: tuple[int, int, int]) -> list[int]:
        """Return the frames, rows and columns of latents of a token grid."""
        return [n * size for n, size in zip(grid, self.patch, strict=True)]

    def _attention(self, video: int, text: int) -> int:
        """Return the FLOPs of scores and weighted sums."""
        pairs = (video + text) ** 2 if self.joint_text else video * (video + text)
        return int(self.model.config.num_layers * 4 * pairs * self._width)

    def _patch(self) -> Patch:
        theirs = self.model.config
        if isinstance(theirs.patch_size, int):
            return theirs.patch_size_t or 1, theirs.patch_size, theirs.patch_size
        t, h, w = theirs.patch_size
        return t, h, w

    def _text_width(self) -> int:
        return int(self.model.config.text_embed_dim)

    @property
    def _width(self) -> int:
        """Width of a token in the transformer."""
        return int(self.model.config.num_attention_heads * self.model.config.attention_head_dim)

    def _prepare(self) -> None:
        """Set what is a family's own, once the model is loaded."""

    def _check_channels(self, channels: int, first_frames: FirstFramesConfig | None) -> None:
        """Check the channels of the latents and, in families that are given first frames, prepare for these."""
        if first_frames is not None:
            raise UsageError(
                f"{self.source} is given no first frames: leave train.first_frames out, or take another model"
            )
        self._fits("latents", channels, self.model.config.in_channels)

    def _fits(self, what: str, channels: int, expected: int) -> None:
        if channels != expected:
            raise UsageError(
                f"{self.config.name} takes {what} of {expected} channels, and the configuration makes {channels}: take"
                " the encoders that belong to it (of models that are given an image, too, Wan's alone are supported)"
            )

    def _rows(self, name: str) -> InputRows:
        return next((rows for pattern, rows in self.rows if re.search(pattern, name)), "video")

    def _count_weights(self, pattern: str) -> dict[InputRows, int]:
        """Count weights of the matrices that match a name pattern, by rows."""
        counts: dict[InputRows, int] = {}
        for name, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d) and re.search(pattern, name):
                rows = self._rows(name)
                counts[rows] = counts.get(rows, 0) + layer.weight.numel()
        return counts


def all_valid(context_BMD: torch.Tensor) -> torch.Tensor:
    """Return the mask of text without padding, bool [B, M]."""
    return torch.ones_like(context_BMD[..., 0], dtype=torch.bool)
