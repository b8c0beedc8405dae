"""A Wan of a few thousand random weights, in the folders of the published one: for trials without a GPU.

python examples/tiny_wan.py tiny-wan
"""

import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

folder = Path(sys.argv[1])
torch.manual_seed(0)
WanTransformer3DModel(
    num_attention_heads=2,
    attention_head_dim=16,
    in_channels=4,
    out_channels=4,
    text_dim=8,
    freq_dim=16,
    ffn_dim=32,
    num_layers=2,
    rope_max_seq_len=64,
).save_pretrained(folder / "transformer")
AutoencoderKLWan(
    base_dim=4, z_dim=4, num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
).save_pretrained(folder / "vae")
tokenizer = ByT5Tokenizer()  # bytes are its words, so that it needs no vocabulary
UMT5EncoderModel(
    UMT5Config(vocab_size=len(tokenizer), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
).save_pretrained(folder / "text_encoder")
tokenizer.save_pretrained(folder / "tokenizer")
(folder / "model_index.json").write_text(json.dumps({"transformer": ["diffusers", "WanTransformer3DModel"]}))
