"""Tiny models of diffusers in the layout that pipelines are published in."""

import torch

from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.config.run import TrainConfig
from tests.train.clips import tiny_config
from tests.train.diffusers_models import FAMILIES, transformer
from tests.train.models import wan_pipelines

SPECIAL = {
    "wan": {},
    "wan, two norms": {"cross_attn_norm": False},
    "cogvideox": {},
    "cogvideox, rotary": {"use_rotary_positional_embeddings": True},
    "cogvideox 1.5": {
        "use_rotary_positional_embeddings": True,
        "patch_size_t": 2,
        "patch_bias": False,
    },
    "hunyuan": {},
    "hunyuan, distilled": {"guidance_embeds": True},
    "cosmos": {"concat_padding_mask": True},
    "cosmos 2": {"concat_padding_mask": True, "extra_pos_embed_type": None},
}
CALLED = {
    "cogvideox 1.5": {"patch": (2, 2, 2)},
    "hunyuan, distilled": {"guidance": 6.0},
    "cosmos": {"fps": 30.0},
}
"""What the configuration must say of a variant."""


def drawn(variant, channels=4, heads=2, **special):
    """The model with every weight drawn."""
    name, _ = FAMILIES[variant.replace(",", " ").split()[0]]
    torch.manual_seed(0)
    sizes = {"num_attention_heads": heads, "in_channels": channels, "out_channels": channels}
    model = transformer(name, SPECIAL[variant] | special | sizes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def publish(folder, variant, channels=4, heads=2, **settings):
    """The configuration of a drawn model, which lies in a pipeline's folder."""
    drawn(variant, channels, heads).save_pretrained(folder / "transformer")
    return DiffusersConfig(name=str(folder), **CALLED.get(variant, {}) | settings)


def vocabulary():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "</s>", "a", "cat", "dog", "jumps", "over", "the"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )


def publish_text(folder, number="", kind="Bert", width=8):
    """A drawn text encoder and its tokenizer, as parts of a pipeline."""
    import transformers

    sizes = {"intermediate_size": 16, "hidden_size": width, "num_hidden_layers": 4, "num_attention_heads": 2}
    if kind in ("T5", "UMT5"):
        sizes = {"d_model": width, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    name = "CLIPText" if kind == "CLIP" else kind
    config = getattr(transformers, f"{name}Config")(vocab_size=9, **sizes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}{'EncoderModel' if 'T5' in kind else 'Model'}")(config)
    model.save_pretrained(folder / f"text_encoder{number}")
    vocabulary().save_pretrained(folder / f"tokenizer{number}")
    return {
        "name": str(folder),
        "subfolder": f"text_encoder{number}",
        "tokenizer_subfolder": f"tokenizer{number}",
    }


OBJECTIVES = {"cogvideox": DDPMConfig(prediction="v", zero_terminal_snr=True), "cosmos": EDMConfig()}


def run_config(folder, variant, steps=6, lr=5e-3, channels=24, **update):
    """A run of a published model that takes the 24 channels of the tests' tokenizer."""
    config = tiny_config(steps, every_steps=3, lr=lr)
    update = {"model": publish(folder, variant, channels=channels)} | update
    update["objective"] = OBJECTIVES.get(variant.replace(",", " ").split()[0], FlowConfig())
    update["text"] = {"width": 8, "max_text_tokens": 4, "kind": "hashed"}
    if variant.startswith("hunyuan"):
        pooled = publish_text(folder, "_2", width=6)
        update["text"] = publish_text(folder) | {
            "kind": "transformers",
            "max_text_tokens": 4,
            "pooled": pooled,
        }
    return TrainConfig.model_validate(config.model_dump() | update)


FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
CASES = {
    "wan, adapters": ("wan", FSDP, {"rank": 4}),
    "wan, adapters on 4 bits": ("wan", FSDP, {"rank": 4, "base_dtype": "nf4"}),
    "wan, adapters, Ulysses": ("wan", {"ulysses": 2}, {"rank": 4}),
    "wan, ring, FSDP": ("wan", FSDP | {"ring": 2}, None),
    "wan, picture before grey, ring, FSDP": ("2.2 A14B I2V", FSDP | {"ring": 2}, None),
    "wan, kept frames, adapters, Ulysses": ("2.2 TI2V 5B", {"ulysses": 2}, {"rank": 4}),
    "wan, ZeRO-1": ("wan", FSDP | {"shard": "optimizer"}, None),
    "cogvideox, FSDP": ("cogvideox", FSDP, None),
    "hunyuan, FSDP": ("hunyuan", FSDP, None),
    "hunyuan, ring, FSDP": ("hunyuan", FSDP | {"ring": 2}, None),
    "cosmos, Ulysses": ("cosmos", {"ulysses": 2}, None),
}
"""Runs on two ranks: the model, the layout, adapters."""


def case_config(folder, name):
    variant, parallel, lora = CASES[name]
    if variant in wan_pipelines.IMAGE:
        wan_pipelines.publish(folder, variant, channels=24)
        own = tiny_config(4, every_steps=3, lr=5e-3)
        update = {"tokenizer": own.tokenizer, "lora": lora, "ema": {"decay": 0.5}, "parallel": parallel}
        update |= {"schedule": own.schedule, "optimizer": own.optimizer}
        return wan_pipelines.configured(folder, variant, **update)
    return run_config(folder, variant, 4, lora=lora, ema={"decay": 0.5}, parallel=parallel)
