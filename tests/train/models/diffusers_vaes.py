"""Published VAEs small enough for tests; classes are called by name, as in tests/train/diffusers_models.py."""

import torch

from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.published.vae import DiffusersVAE

BLOCKS = (8, 8, 8, 8)
FAMILIES = {
    "wan": (
        "AutoencoderKLWan",
        {
            "base_dim": 4,
            "z_dim": 4,
            "num_res_blocks": 1,
            "latents_mean": [0.1, 0.2, 0.3, 0.4],
            "latents_std": [2.0] * 4,
        },
        {},
    ),
    "wan 2.2": (
        "AutoencoderKLWan",
        {
            "base_dim": 4,
            "decoder_base_dim": 4,
            "z_dim": 4,
            "num_res_blocks": 1,
            "latents_mean": [0.1] * 4,
            "latents_std": [2.0] * 4,
            "is_residual": True,
            "patch_size": 2,
            "in_channels": 12,
            "out_channels": 12,
            "scale_factor_spatial": 16,
        },
        {"height": 16, "width": 16},
    ),
    "cogvideox": (
        "AutoencoderKLCogVideoX",
        {
            "block_out_channels": BLOCKS,
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 2,
            "scaling_factor": 0.7,
        },
        {},
    ),
    "hunyuan": (
        "AutoencoderKLHunyuanVideo",
        {
            "block_out_channels": BLOCKS,
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 2,
            "scaling_factor": 0.5,
        },
        {},
    ),
    "cosmos": (
        "AutoencoderKLCosmos",
        {
            "encoder_block_out_channels": BLOCKS,
            "decode_block_out_channels": BLOCKS,
            "latent_channels": 4,
            "num_layers": 1,
            "attention_resolutions": (),
            "resolution": 64,
            "patch_size": 2,
            "latents_mean": [0.1] * 4 + [0.3] * 4,
            "latents_std": [2.0] * 4 + [3.0] * 4,
            "temporal_compression_ratio": 4,
        },
        {"scale": 0.5},
    ),
}


def drawn(family, seed=0):
    import diffusers

    name, sizes, _ = FAMILIES[family]
    torch.manual_seed(seed)
    return getattr(diffusers, name)(**sizes)


def publish(folder, family):
    vae = drawn(family)
    vae.save_pretrained(folder / "vae")
    return vae.eval()


def tokenizer(folder, family, **settings):
    publish(folder, family)
    return DiffusersVAE(DiffusersVAEConfig(name=str(folder), **FAMILIES[family][2] | settings))
