"""Wan's VAE, of 2.1 and of 2.2 5B."""

from collections.abc import Iterable

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.models.published.vae_base import PublishedName, PublishedVae, VaeSettings


class WanVae(PublishedVae):
    """VAE that decodes frame by frame, and cuts patches and clamps at the end."""

    source = "AutoencoderKLWan"
    fixed = ("is_residual", "patch_size", "in_channels", "out_channels")

    @property
    def frames_step(self) -> int:
        """Frames that it encodes at a time."""
        return 4

    @property
    def patch(self) -> int:
        """Side of the patches that Wan 2.2's decoder leaves to its VAE."""
        return self.vae.config.get("patch_size") or 1

    def decode_unclipped(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        x_BCTHW = self.vae.post_quant_conv(latents_BCTHW)
        video_BCTHW: torch.Tensor = unpatchify(self._decode(torch.split(x_BCTHW, 1, dim=2)), self.patch)
        return video_BCTHW

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        return self._decode(map(self.vae.post_quant_conv, torch.split(latents_BCTHW, 1, dim=2)))

    def finish(self, decoded_BCTHW: torch.Tensor) -> torch.Tensor:
        if self.vae.config.patch_size is not None:
            from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

            decoded_BCTHW = unpatchify(decoded_BCTHW, patch_size=self.vae.config.patch_size)
        return decoded_BCTHW.clamp(min=-1.0, max=1.0)

    def published_name(self, changed: VaeSettings) -> PublishedName:
        """Map names where resolution levels grow at the deep end of ``dim_mult``.

        In Wan 2.1 the encoder's layers are numbered across levels; in Wan 2.2 ``down_blocks`` are levels. A
        decoder's ``up_blocks`` are levels in both, deepest first.
        """
        published: VaeSettings = self.vae.config
        _check_levels(published, changed)
        added = len(changed["dim_mult"]) - len(published["dim_mult"])
        numbered = not changed["is_residual"]
        layer_indices = {layer: index for index, layer in enumerate(_encoder_layers(published))}
        layers = _encoder_layers(changed)

        def published_name(name: str) -> str | None:
            part, _, rest = name.partition("_blocks.")
            index_text, _, inner = rest.partition(".")
            if part == "decoder.up":
                block = int(index_text) - added
                return f"{part}_blocks.{block}.{inner}" if block >= 0 else None
            if part == "encoder.down" and numbered:
                index = layer_indices.get(layers[int(index_text)])
                return None if index is None else f"{part}_blocks.{index}.{inner}"
            return name

        return published_name

    def _decode(self, frames: Iterable[torch.Tensor]) -> torch.Tensor:
        """Decode frame by frame, with what each convolution has seen of the frames before."""
        vae, chunks = self.vae, []
        vae.clear_cache()
        for index, x_BC1HW in enumerate(frames):
            vae._conv_idx = [0]
            chunks.append(
                vae.decoder(x_BC1HW, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=index == 0)
            )
        vae.clear_cache()
        return torch.cat(chunks, dim=2)


def _check_levels(published: VaeSettings, changed: VaeSettings) -> None:
    """Refuse levels that do not follow the published ones."""
    before, now = len(published["dim_mult"]), len(changed["dim_mult"])
    halvings = changed["temperal_downsample"]
    if len(halvings) != now - 1:
        raise UsageError(
            f"model.architecture: dim_mult has {now} levels, so temperal_downsample must have {now - 1} values, not"
            f" {len(halvings)}"
        )
    levels = list(changed["dim_mult"])[:before], list(halvings)[: before - 1]
    if levels != (list(published["dim_mult"]), list(published["temperal_downsample"])):
        raise UsageError(
            "model.architecture: added levels must come behind the published ones, dim_mult"
            f" {list(published['dim_mult'])} and temperal_downsample {list(published['temperal_downsample'])}, as the"
            " deepest"
        )
    if any(halvings[before - 1 :]):
        raise UsageError(
            "model.architecture: added levels cannot halve time, since Wan's encoder takes frames in fours; set the"
            " added values of temperal_downsample to false"
        )


def _encoder_layers(settings: VaeSettings) -> list[tuple[int, str, int]]:
    """Return level, kind and index in its level for each of Wan 2.1's ``encoder.down_blocks``, in order."""
    layers: list[tuple[int, str, int]] = []
    for level in range(len(settings["dim_mult"])):
        for block in range(settings["num_res_blocks"]):
            layers.append((level, "residual", block))
            if 0.5**level in settings["attn_scales"]:
                layers.append((level, "attention", block))
        if level < len(settings["dim_mult"]) - 1:
            layers.append((level, "resample", 0))
    return layers
