"""Names of Wan 2.1 and 2.2 in their original repository, which ComfyUI and musubi-tuner have, too."""

from reelweave.train.models.published.names.native import NativeNames

_ATTENTION = {
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "o",
    "norm_q": "norm_q",
    "norm_k": "norm_k",
}
_IMAGE = {"add_k_proj": "k_img", "add_v_proj": "v_img", "norm_added_k": "norm_k_img"}

WAN_NAMES = NativeNames(
    family="Wan",
    renamed={
        "patch_embedding": "patch_embedding",
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
        "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
        "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
        "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
        "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
        **{
            f"blocks.{{}}.attn1.{name}": f"blocks.{{}}.self_attn.{native}"
            for name, native in _ATTENTION.items()
        },
        **{
            f"blocks.{{}}.attn2.{name}": f"blocks.{{}}.cross_attn.{native}"
            for name, native in (_ATTENTION | _IMAGE).items()
        },
        "blocks.{}.norm2": "blocks.{}.norm3",
        "blocks.{}.ffn.net.0.proj": "blocks.{}.ffn.0",
        "blocks.{}.ffn.net.2": "blocks.{}.ffn.2",
        "blocks.{}.scale_shift_table": "blocks.{}.modulation",
        "scale_shift_table": "head.modulation",
        "proj_out": "head.head",
    },
    musubi=r"blocks\.",
)
