"""Video tokenizers, and one without weights: an orthonormal cosine transform of space-time patches."""

import math

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.models.attention.patches import cut, join
from reelweave.train.models.encoders.decode_tiles import TileAxis, TileLayout
from reelweave.train.models.encoders.tile_grid import TileGrid

COLOURS = 3
_TIME_WEIGHT = 2.5
_MEAN_DEVIATION = 0.62
_DETAIL_DEVIATION = 0.145


def cosine_basis(size: int) -> torch.Tensor:
    """Return the rows of the orthonormal DCT-II, float64 [size, size]; row k holds frequency k.

    Ahmed, Natarajan, Rao, "Discrete Cosine Transform", 1974, with the scaling that makes it orthonormal.
    """
    index = torch.arange(size, dtype=torch.float64)
    basis = torch.cos(math.pi / size * (index + 0.5) * index[:, None]) * math.sqrt(2 / size)
    basis[0] = math.sqrt(1 / size)
    return basis


class Tokenizer(nn.Module):
    """Video tokenizer, causal in time: 1 + k * frames video frames become 1 + k latent frames.

    Attributes:
        compression: video frames, pixel rows and pixel columns per latent.
    """

    compression: tuple[int, int, int]

    @property
    def channels(self) -> int:
        """Number of channels of a latent."""
        raise NotImplementedError

    @property
    def tile_grid(self) -> TileGrid | None:
        """Tile grid of `encode`; None without tiles."""
        return None

    def encode(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """Encode RGB video to latents.

        Args:
            video_BCTHW: [B, 3, frames, height, width], uint8 or floating point in [-1, 1].

        Returns:
            float32 [B, channels, 1 + (frames - 1) / frames per latent, height / rows, width / columns].

        Raises:
            UsageError: the size does not divide (`latent_size`).
        """
        raise NotImplementedError

    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode latents to video, float32 [B, 3, frames, height, width]."""
        raise NotImplementedError

    def decode_layout(self, step: tuple[int, int] | None = None) -> TileLayout:
        """Return the tiles of a decode.

        Args:
            step: latent rows and columns between the starts of tiles; None: the tiles that `decode` has.
        """
        raise NotImplementedError

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode one tile; `finish` makes a video of what `TileLayout.assemble` makes of all."""
        raise NotImplementedError

    def finish(self, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return the video, float32 [B, 3, frames, height, width], of assembled tiles."""
        return decoded_BCTHW

    def latent_size(self, size: tuple[int, ...]) -> tuple[int, int, int]:
        """Return frames, rows and columns of the latents of a video of this size.

        Raises:
            UsageError: the video does not divide into whole patches.
        """
        t, h, w = self.compression
        frames, height, width = size
        if (frames - 1) % t:
            below = frames - (frames - 1) % t
            raise UsageError(
                f"{frames} frames do not fit tokenizer.frames={t}: "
                f"use 1 + a multiple of {t}, such as {below} or {below + t}"
            )
        if height % h or width % w:
            raise UsageError(
                f"{height}x{width} pixels do not fit the tokenizer: height must be a multiple of {h}, "
                f"width a multiple of {w}"
            )
        return 1 + (frames - 1) // t, height // h, width // w


class LatentSizes(Tokenizer):
    """Tokenizer that returns zeros of another tokenizer's latent sizes, for dry runs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.compression, self._channels = tokenizer.compression, tokenizer.channels

    @property
    def channels(self) -> int:
        return self._channels

    def encode(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        size = (len(video_BCTHW), self._channels, *self.latent_size(tuple(video_BCTHW.shape[2:])))
        return torch.zeros(size, device=video_BCTHW.device)


def frequencies(patch: tuple[int, int, int]) -> torch.Tensor:
    """Return the frequency of each coefficient of a patch, float64 [K], frames before rows before columns.

    Rows and columns count in half waves per patch. Time counts `_TIME_WEIGHT` as much, since footage changes less from
    frame to frame than from pixel to pixel.
    """
    time, rows, columns = (torch.arange(size, dtype=torch.float64) for size in patch)
    squares = (_TIME_WEIGHT * time[:, None, None]) ** 2 + rows[:, None] ** 2 + columns**2
    return squares.sqrt().flatten()


def natural_deviations(patch: tuple[int, int, int]) -> torch.Tensor:
    """Return the deviation that each coefficient of a patch has in natural footage, float64 [K].

    Amplitudes fall as 1 / frequency (Field, "Relations between the statistics of natural images", 1987, figure 7).
    The two factors are those of the demo's footage; nine filmed videos have as much of the mean and half of the detail.
    """
    values, frequency_K = math.sqrt(math.prod(patch)), frequencies(patch)
    return values * torch.where(
        frequency_K == 0, _MEAN_DEVIATION, _DETAIL_DEVIATION / frequency_K.clamp(min=1)
    )


def coefficients(config: PatchTransformConfig) -> list[int]:
    """Return the numbers of the coefficients of a patch and colour that latents hold, rising.

    More of them lie between those of fewer, since the order is that of `frequencies` in time, rows and columns.
    """
    order_K = frequencies((config.frames, config.height, config.width)).argsort(stable=True)
    return order_K[: config.kept].sort().values.tolist()


def channels_within(before: PatchTransformConfig, now: PatchTransformConfig) -> list[int]:
    """Return the channel of the latents of ``now`` that each channel of ``before`` is, of patches of one size."""
    number = {coefficient: index for index, coefficient in enumerate(coefficients(now))}
    return [
        number[coefficient] * COLOURS + colour
        for coefficient in coefficients(before)
        for colour in range(COLOURS)
    ]


class PatchTransform(Tokenizer):
    """Fixed, linear and causal transform between video and latents; lossless unless coefficients are dropped.

    Frames are grouped as in causal video VAEs: the first frame alone, then every ``frames`` frames together.
    So 1 + k * frames video frames give 1 + k latent frames. The first frame is repeated ``frames`` times as a
    still (as in the Cosmos tokenizer, NVIDIA 2024, section 3): its group has the statistics of the others and
    no motion. Each group is cut into patches of ``frames x height x width`` pixels, and a patch becomes its
    DCT-II coefficients per colour.

    Pixels are in [-1, 1]. The transform is an isometry of the video with its first frame repeated: a squared
    error between latents is the squared error between those pixels. No channel is rescaled, so that a channel's
    variance is the energy of its frequency in the footage. With ``normalized``, channels are divided by
    `natural_deviations`. With ``kept``, only the coefficients of the lowest `frequencies` stay, as in a JPEG, and a
    decoded video lacks detail.

    Channels of a latent are ordered by frequency in time, rows, columns, then colour (fastest).
    """

    def __init__(self, config: PatchTransformConfig) -> None:
        super().__init__()
        self.compression = (config.frames, config.height, config.width)
        time, rows, columns = (cosine_basis(size) for size in self.compression)
        basis_KP = torch.kron(time, torch.kron(rows, columns))
        scale_K = (
            natural_deviations(self.compression) if config.normalized else basis_KP.new_ones(len(basis_KP))
        )
        numbers_K = torch.tensor(coefficients(config))
        basis_KP, scale_K = basis_KP[numbers_K], scale_K[numbers_K]
        self.register_buffer("basis_KP", (basis_KP / scale_K[:, None]).float(), persistent=False)
        self.register_buffer("decoded_KP", (basis_KP * scale_K[:, None]).float(), persistent=False)
        self.basis_KP: torch.Tensor
        self.decoded_KP: torch.Tensor

    @property
    def channels(self) -> int:
        return COLOURS * len(self.basis_KP)

    def encode(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        self.latent_size(tuple(video_BCTHW.shape[2:]))
        x = video_BCTHW.float()
        if video_BCTHW.dtype == torch.uint8:
            x = x / 127.5 - 1
        held = self.compression[0] - 1
        x = torch.cat([x[:, :, :1].expand(-1, -1, held, -1, -1), x], dim=2)
        coefficients_BTHWCK = cut(x, self.compression) @ self.basis_KP.T
        return coefficients_BTHWCK.permute(0, 5, 4, 1, 2, 3).flatten(1, 2)

    def decode(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        """Decode latents; inverts ``encode`` as far as coefficients are kept."""
        B, _, T, H, W = latents_BCTHW.shape
        coefficients = latents_BCTHW.float().reshape(B, -1, COLOURS, T, H, W)
        x = join(coefficients.permute(0, 3, 4, 5, 2, 1) @ self.decoded_KP, self.compression)
        # Generated latents may not be a still in the first group; its projection on stills is the mean.
        t = self.compression[0]
        return torch.cat([x[:, :, :t].mean(dim=2, keepdim=True), x[:, :, t:]], dim=2)

    def decode_layout(self, step: tuple[int, int] | None = None) -> TileLayout:
        """Return the tiles of a decode: one, or any without overlap, since patches do not depend on each other."""
        if step is None:
            return TileLayout(self.compression)
        rows, columns = (
            TileAxis.of(size, 0, along) for size, along in zip(step, self.compression[1:], strict=True)
        )
        return TileLayout(self.compression, None, rows, columns)

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        return self.decode(latents_BCTHW)
