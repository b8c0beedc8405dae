"""Names of CogVideoX in its original repository, which are those of SwissArmyTransformer (SAT)."""

from reelweave.train.models.published.names.native import Fused, NativeNames

_BLOCK = "transformer_blocks.{}"
_LAYER = {
    "norm1.norm": "input_layernorm",
    "norm2.norm": "post_attention_layernorm",
    "attn1.to_out.0": "attention.dense",
    "ff.net.0.proj": "mlp.dense_h_to_4h",
    "ff.net.2": "mlp.dense_4h_to_h",
}
_MODULATION = tuple((norm, part) for first in (0, 3) for norm in (0, 1) for part in range(first, first + 3))
"""Shift, scale and gate of attention and of the MLP for video, then the same for text."""

COGVIDEOX_NAMES = NativeNames(
    family="CogVideoX",
    renamed={
        "patch_embed.proj": "mixins.patch_embed.proj",
        "patch_embed.text_proj": "mixins.patch_embed.text_proj",
        "patch_embed.pos_embedding": "mixins.pos_embed.pos_embedding",
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "ofs_embedding.linear_1": "ofs_embed.0",
        "ofs_embedding.linear_2": "ofs_embed.2",
        **{f"{_BLOCK}.{name}": f"transformer.layers.{{}}.{native}" for name, native in _LAYER.items()},
        f"{_BLOCK}.attn1.norm_q": "mixins.adaln_layer.query_layernorm_list.{}",
        f"{_BLOCK}.attn1.norm_k": "mixins.adaln_layer.key_layernorm_list.{}",
        "norm_final": "transformer.final_layernorm",
        "norm_out.norm": "mixins.final_layer.norm_final",
        "norm_out.linear": "mixins.final_layer.adaLN_modulation.1",
        "proj_out": "mixins.final_layer.linear",
    },
    fused=(
        Fused(
            "transformer.layers.{}.attention.query_key_value",
            tuple(f"{_BLOCK}.attn1.to_{part}" for part in "qkv"),
        ),
        Fused(
            "mixins.adaln_layer.adaLN_modulations.{}.1",
            (f"{_BLOCK}.norm1.linear", f"{_BLOCK}.norm2.linear"),
            _MODULATION,
        ),
    ),
    prefix="model.diffusion_model.",
    computed=(
        r"\.freqs_(sin|cos)$",
        r"\.pos_embedding$",
        r"\.(word|position)_embeddings?\b",
        r"\bembed_tokens\b",
    ),
    no_adapters="CogVideoX's original repository keeps adapters within its own checkpoints, and no other tool reads"
    " them by its names; take --format diffusers",
)
