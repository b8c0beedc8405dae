"""Names of Cosmos in its original repositories, which ComfyUI has, too: those of version 1, and of Predict2."""

from reelweave.train.models.published.names.native import NativeNames

_BLOCK = "transformer_blocks.{}"
_PREFIX = "net."
_COMPUTED = (r"\blogvar\.", r"\bpos_embedder\.", r"\baccum_", r"_extra_state$")
_ENDS = {
    "patch_embed.proj": "x_embedder.proj.1",
    "time_embed.t_embedder.linear_1": "t_embedder.1.linear_1",
    "time_embed.t_embedder.linear_2": "t_embedder.1.linear_2",
    "proj_out": "final_layer.linear",
}
_FIRST = "blocks.block{}.blocks"
_ATTENTION_1 = {
    "to_q": "to_q.0",
    "norm_q": "to_q.1",
    "to_k": "to_k.0",
    "norm_k": "to_k.1",
    "to_v": "to_v.0",
    "to_out.0": "to_out.0",
}
_ATTENTION_2 = {
    "to_q": "q_proj",
    "norm_q": "q_norm",
    "to_k": "k_proj",
    "norm_k": "k_norm",
    "to_v": "v_proj",
    "to_out.0": "output_proj",
}

COSMOS_1_NAMES = NativeNames(
    family="Cosmos 1",
    renamed={
        **_ENDS,
        "time_embed.norm": "affline_norm",
        **{f"learnable_pos_embed.pos_emb_{axis}": f"extra_pos_embedder.pos_emb_{axis}" for axis in "thw"},
        **{
            f"{_BLOCK}.attn{number + 1}.{name}": f"{_FIRST}.{number}.block.attn.{native}"
            for number in range(2)
            for name, native in _ATTENTION_1.items()
        },
        f"{_BLOCK}.ff.net.0.proj": f"{_FIRST}.2.block.layer1",
        f"{_BLOCK}.ff.net.2": f"{_FIRST}.2.block.layer2",
        **{
            f"{_BLOCK}.norm{number + 1}.linear_{layer}": f"{_FIRST}.{number}.adaLN_modulation.{layer}"
            for number in range(3)
            for layer in (1, 2)
        },
        "norm_out.linear_1": "final_layer.adaLN_modulation.1",
        "norm_out.linear_2": "final_layer.adaLN_modulation.2",
    },
    prefix=_PREFIX,
    computed=_COMPUTED,
)
COSMOS_2_NAMES = NativeNames(
    family="Cosmos Predict2",
    renamed={
        **_ENDS,
        "time_embed.norm": "t_embedding_norm",
        "crossattn_proj.0": "crossattn_proj.0",
        **{
            f"{_BLOCK}.{attention}.{name}": f"blocks.{{}}.{original}.{native}"
            for attention, original in (("attn1", "self_attn"), ("attn2", "cross_attn"))
            for name, native in _ATTENTION_2.items()
        },
        f"{_BLOCK}.ff.net.0.proj": "blocks.{}.mlp.layer1",
        f"{_BLOCK}.ff.net.2": "blocks.{}.mlp.layer2",
        **{
            f"{_BLOCK}.norm{number}.linear_{layer}": f"blocks.{{}}.adaln_modulation_{branch}.{layer}"
            for number, branch in enumerate(("self_attn", "cross_attn", "mlp"), 1)
            for layer in (1, 2)
        },
        "norm_out.linear_1": "final_layer.adaln_modulation.1",
        "norm_out.linear_2": "final_layer.adaln_modulation.2",
    },
    prefix=_PREFIX,
    computed=_COMPUTED,
)
