"""Names of HunyuanVideo in its original repository, which musubi-tuner has, too, and ComfyUI reads."""

from reelweave.train.models.published.names.native import Fused, NativeNames

_DOUBLE = {
    "norm1.linear": "img_mod.linear",
    "norm1_context.linear": "txt_mod.linear",
    "attn.norm_q": "img_attn_q_norm",
    "attn.norm_k": "img_attn_k_norm",
    "attn.to_out.0": "img_attn_proj",
    "attn.norm_added_q": "txt_attn_q_norm",
    "attn.norm_added_k": "txt_attn_k_norm",
    "attn.to_add_out": "txt_attn_proj",
    "ff.net.0.proj": "img_mlp.fc1",
    "ff.net.2": "img_mlp.fc2",
    "ff_context.net.0.proj": "txt_mlp.fc1",
    "ff_context.net.2": "txt_mlp.fc2",
}
_SINGLE = {
    "norm.linear": "modulation.linear",
    "attn.norm_q": "q_norm",
    "attn.norm_k": "k_norm",
    "proj_out": "linear2",
}
_REFINER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.to_out.0": "self_attn_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
    "norm_out.linear": "adaLN_modulation.1",
}
_REFINERS = "context_embedder.token_refiner.refiner_blocks.{}", "txt_in.individual_token_refiner.blocks.{}"
_SCALE_SHIFT = ((0, 1), (0, 0))
"""The last modulation is shift and scale there, and scale and shift in diffusers."""


def _attention(block: str, names: str) -> tuple[str, ...]:
    return tuple(f"{block}.attn.{names.format(part)}" for part in "qkv")


HUNYUAN_NAMES = NativeNames(
    family="HunyuanVideo",
    renamed={
        "x_embedder.proj": "img_in.proj",
        "time_text_embed.timestep_embedder.linear_1": "time_in.mlp.0",
        "time_text_embed.timestep_embedder.linear_2": "time_in.mlp.2",
        "time_text_embed.guidance_embedder.linear_1": "guidance_in.mlp.0",
        "time_text_embed.guidance_embedder.linear_2": "guidance_in.mlp.2",
        "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
        "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
        "context_embedder.proj_in": "txt_in.input_embedder",
        "context_embedder.time_text_embed.timestep_embedder.linear_1": "txt_in.t_embedder.mlp.0",
        "context_embedder.time_text_embed.timestep_embedder.linear_2": "txt_in.t_embedder.mlp.2",
        "context_embedder.time_text_embed.text_embedder.linear_1": "txt_in.c_embedder.linear_1",
        "context_embedder.time_text_embed.text_embedder.linear_2": "txt_in.c_embedder.linear_2",
        **{f"{_REFINERS[0]}.{name}": f"{_REFINERS[1]}.{native}" for name, native in _REFINER.items()},
        **{
            f"transformer_blocks.{{}}.{name}": f"double_blocks.{{}}.{native}"
            for name, native in _DOUBLE.items()
        },
        **{
            f"single_transformer_blocks.{{}}.{name}": f"single_blocks.{{}}.{native}"
            for name, native in _SINGLE.items()
        },
        "proj_out": "final_layer.linear",
    },
    fused=(
        Fused(f"{_REFINERS[1]}.self_attn_qkv", _attention(_REFINERS[0], "to_{}")),
        Fused("double_blocks.{}.img_attn_qkv", _attention("transformer_blocks.{}", "to_{}")),
        Fused("double_blocks.{}.txt_attn_qkv", _attention("transformer_blocks.{}", "add_{}_proj")),
        Fused(
            "single_blocks.{}.linear1",
            (*_attention("single_transformer_blocks.{}", "to_{}"), "single_transformer_blocks.{}.proj_mlp"),
        ),
        Fused("final_layer.adaLN_modulation.1", ("norm_out.linear",), _SCALE_SHIFT),
    ),
    repackaged=(
        ("txt_in.t_embedder.mlp.0.", "txt_in.t_embedder.in_layer."),
        ("txt_in.t_embedder.mlp.2.", "txt_in.t_embedder.out_layer."),
        ("txt_in.c_embedder.linear_1.", "txt_in.c_embedder.in_layer."),
        ("txt_in.c_embedder.linear_2.", "txt_in.c_embedder.out_layer."),
        ("_in.mlp.0.", "_in.in_layer."),
        ("_in.mlp.2.", "_in.out_layer."),
        ("mlp.fc1.", "mlp.0."),
        ("mlp.fc2.", "mlp.2."),
        ("_attn_qkv.", "_attn.qkv."),
        ("_attn_proj.", "_attn.proj."),
        ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
        ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
        (".q_norm.weight", ".norm.query_norm.scale"),
        (".k_norm.weight", ".norm.key_norm.scale"),
        ("_mod.linear.", "_mod.lin."),
        (".modulation.linear.", ".modulation.lin."),
    ),
    alpha=False,
    musubi=r"(double|single)_blocks\.",
)
