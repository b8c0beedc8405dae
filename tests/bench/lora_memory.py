"""Memory that LoRA on large published models is predicted to take, for docs/benchmarks/lora_memory.md; needs no GPU.

python -m tests.bench.lora_memory [--models wan-14b hunyuan] [--frames 81 33]

Latents and text are stored (`reelweave latents`), adapters of rank 16 are on the projections of attention, and a
microbatch has one video of 480 x 832 pixels. Models are their published config.json. That of HunyuanVideo has a narrow
text input, whose projection would be 0.02 GiB.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from reelweave.loader.buckets.assignment import Bucket
from reelweave.train.config.run import TrainConfig
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.shapes import StepShape
from tests.train.clips import tiny_config
from tests.train.published import publish_text

WAN = {
    "_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "cross_attn_norm": True, "eps": 1e-6,
    "freq_dim": 256, "in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2], "rope_max_seq_len": 1024,
    "qk_norm": "rms_norm_across_heads", "text_dim": 4096,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "wan-1.3b": WAN | {"ffn_dim": 8960, "num_attention_heads": 12, "num_layers": 30},
    "wan-14b": WAN | {"ffn_dim": 13824, "num_attention_heads": 40, "num_layers": 40},
    "hunyuan": {
        "_class_name": "HunyuanVideoTransformer3DModel", "attention_head_dim": 128, "guidance_embeds": True,
        "in_channels": 16, "mlp_ratio": 4.0, "num_attention_heads": 24, "num_layers": 20, "num_refiner_layers": 2,
        "num_single_layers": 40, "out_channels": 16, "patch_size": 2, "patch_size_t": 1, "pooled_projection_dim": 6,
        "qk_norm": "rms_norm", "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0, "text_embed_dim": 8,
    },
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKLWan", "attn_scales": [], "base_dim": 96, "dim_mult": [1, 2, 4, 4], "dropout": 0.0,
    "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16, "num_res_blocks": 2,
    "temperal_downsample": [False, True, True], "z_dim": 16,
}  # fmt: skip


def config_of(folder: Path, model: str, base_dtype: str | None, policy: str) -> TrainConfig:
    """The configuration of a run, whose config.json files are written into a folder."""
    for part, described in (("transformer", MODELS[model]), ("vae", VAE)):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "config.json").write_text(json.dumps(described))
    text: dict[str, Any] = {"kind": "hashed", "width": 4096, "max_text_tokens": 511}
    published: dict[str, Any] = {"kind": "diffusers", "name": str(folder), "dtype": "bfloat16"}
    if model == "hunyuan":
        published["guidance"] = 6.0
        pooled = publish_text(folder, "_2", width=6)
        text = publish_text(folder) | {"kind": "transformers", "max_text_tokens": 256, "pooled": pooled}
    update = {
        "model": published, "tokenizer": {"kind": "diffusers", "name": str(folder)}, "text": text,
        "objective": {"name": "flow"}, "dtype": "bfloat16", "lora": {"rank": 16, "base_dtype": base_dtype},
        "parallel": {"activation_checkpointing": policy},
    }  # fmt: skip
    return TrainConfig.model_validate(tiny_config(2).model_dump() | update)


def main() -> None:
    """Print a row for each model, type of the base and policy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["wan-14b", "hunyuan"])
    parser.add_argument("--frames", nargs="+", type=int, default=[81, 33])
    options = parser.parse_args()
    print("| model | base | checkpointing | state, GiB |", *(f"peak, {n} frames |" for n in options.frames))
    for model in options.models:
        for base_dtype in (None, "float8", "nf4"):
            for policy in ("full", "offload"):
                with tempfile.TemporaryDirectory() as folder:
                    config = config_of(Path(folder), model, base_dtype, policy)
                    text = config.text.max_text_tokens
                    shapes = [StepShape(Bucket(frames, 480, 832), 1, text) for frames in options.frames]
                    found = dry_run(config.step, shapes, encoded=True)
                peaks = (f"{footprint.step / 2**30:.2f} |" for footprint in found)
                row = f"| {model} | {base_dtype or 'bfloat16'} | {policy} | {found[0].state / 2**30:.2f} |"
                print(row, *peaks, flush=True)


if __name__ == "__main__":
    main()
