"""Transformers of diffusers small enough for tests, with inputs for them.

Classes are called by name: importing diffusers takes seconds, which only tests that make a model of it should take.
"""

import torch

FAMILIES = {
    "wan": ("WanTransformer3DModel", {}),
    "wan, a time per token": ("WanTransformer3DModel", {}),
    "wan, two norms": ("WanTransformer3DModel", {"cross_attn_norm": False}),
    "cogvideox": ("CogVideoXTransformer3DModel", {}),
    "hunyuan": ("HunyuanVideoTransformer3DModel", {}),
    "hunyuan, first frame given": (
        "HunyuanVideoTransformer3DModel",
        {"image_condition_type": "token_replace"},
    ),
    "cosmos": ("CosmosTransformer3DModel", {}),
    "cosmos, a time per frame": ("CosmosTransformer3DModel", {"extra_pos_embed_type": None}),
}
CONFIGS = {
    "WanTransformer3DModel": {
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 8,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 2,
        "rope_max_seq_len": 32,
    },
    "CogVideoXTransformer3DModel": {
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 10,
        "text_embed_dim": 8,
        "num_layers": 2,
        "sample_width": 4,
        "sample_height": 4,
        "sample_frames": 5,
        "max_text_seq_length": 5,
    },
    "HunyuanVideoTransformer3DModel": {
        "in_channels": 4,
        "out_channels": 4,
        "attention_head_dim": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "text_embed_dim": 8,
        "pooled_projection_dim": 6,
        "rope_axes_dim": (4, 4, 8),
        "guidance_embeds": False,
    },
    "CosmosTransformer3DModel": {
        "in_channels": 4,
        "out_channels": 4,
        "attention_head_dim": 16,
        "num_layers": 2,
        "mlp_ratio": 2,
        "text_embed_dim": 8,
        "adaln_lora_dim": 6,
        "max_size": (4, 32, 32),
        "concat_padding_mask": False,
    },
}


def transformer(name, sizes):
    """The model of a class in `CONFIGS`, some sizes changed."""
    import diffusers

    return getattr(diffusers, name)(**CONFIGS[name] | sizes)


def model_of(family, dtype=torch.float32, heads=2):
    """The model with every weight drawn, so that no gate is shut; some stay float32, as when diffusers loads it."""
    torch.manual_seed(0)
    name, special = FAMILIES[family]
    model = transformer(name, special | {"num_attention_heads": heads})
    wide = torch.promote_types(dtype, torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        kept = any(part in name for part in model._keep_in_fp32_modules or ())
        parameter.data = parameter.data.to(wide if kept else dtype)
    return model


def inputs_of(family, dtype=torch.float32, B=2, T=2, H=4, W=6, M=5):
    """Latents, times and text as the model wants them, by name; [B, 4, T, H, W] with patches of 1 x 2 x 2."""
    draw = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    x, text = normal(B, 4, T, H, W), normal(B, M, 8)
    times = torch.rand(B, generator=draw) * 900
    inputs = {"hidden_states": x, "encoder_hidden_states": text, "timestep": times}
    if family.startswith("wan, a time"):
        inputs["timestep"] = torch.rand(B, T * H * W // 4, generator=draw) * 900
    if family.startswith("cosmos, a time"):
        inputs["timestep"] = torch.rand(B, 1, T, 1, 1, generator=draw) * 900
    if family.startswith("cogvideox"):
        inputs["hidden_states"] = normal(B, T, 4, H, W)
    if family.startswith("hunyuan"):
        inputs["encoder_attention_mask"] = torch.ones(B, M, dtype=torch.bool)
        inputs["encoder_attention_mask"][0, -2:] = False
        inputs["pooled_projections"] = normal(B, 6)
    return inputs


def outcome(model, inputs):
    """The output, and the gradients of every input and parameter, by name."""
    out = model(**inputs, return_dict=False)[0]
    leaves = {name: x for name, x in inputs.items() if x.requires_grad} | dict(model.named_parameters())
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin()
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
    found = dict(zip(leaves, gradients, strict=True))
    return {"output": out.detach()} | {name: g for name, g in found.items() if g is not None}


def first_block(model, inputs):
    """The first block that tokens pass, and the arguments it is called with."""
    calls = []
    name = "blocks" if hasattr(model, "blocks") else "transformer_blocks"
    block = model.get_submodule(name)[0]
    hook = block.register_forward_pre_hook(lambda _, *call: calls.append(call), with_kwargs=True)
    model(**inputs)
    hook.remove()
    return block, *calls[0]
