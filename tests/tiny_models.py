"""Tiny random models saved on disk as real ones are, so that tests go through the real loading code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

WORDS = ("a red kite over the sea", "two people walk along a street", "snow")


def tiny_open_clip(folder: Path, seed: int = 0, width: int = 32) -> Path:
    """An open_clip model of 32-pixel pictures, its configuration and weights."""
    import open_clip
    from safetensors.torch import save_file

    config = {
        "embed_dim": width,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    folder.mkdir(parents=True, exist_ok=True)
    preprocess = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic"}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": preprocess})
    )
    torch.manual_seed(seed)
    model = open_clip.CLIP(**config)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


def tiny_text_encoder(folder: Path, kind: Literal["t5", "umt5", "clip", "bert"]) -> Path:
    """A transformers text encoder and its tokenizer of the words in WORDS."""
    import transformers

    vocabulary = _save_tokenizer(folder, kind)
    torch.manual_seed(0)
    size = {"vocab_size": vocabulary, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    wide = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    if kind == "t5":
        model = transformers.T5EncoderModel(transformers.T5Config(**size))
    elif kind == "umt5":
        model = transformers.UMT5EncoderModel(transformers.UMT5Config(**size))
    elif kind == "clip":
        model = transformers.CLIPTextModel(transformers.CLIPTextConfig(**wide, max_position_embeddings=8))
    else:
        model = transformers.BertModel(transformers.BertConfig(**wide))
    model.save_pretrained(folder)
    return folder


def tiny_two_towers(folder: Path, kind: Literal["clip", "siglip"]) -> Path:
    """A CLIP or SigLIP of transformers with 32-pixel pictures, its picture processor and tokenizer."""
    import transformers

    text_kind: Literal["t5", "clip"] = "clip" if kind == "clip" else "t5"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": _save_tokenizer(folder, text_kind), "max_position_embeddings": 12}
    text |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3, "projection_size": 16}
    vision = {**size, "image_size": 32, "patch_size": 8}
    torch.manual_seed(1)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
        model = transformers.CLIPModel(config)
        processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    else:
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
        processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def tiny_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """An image classifier of transformers with 32-pixel pictures, and its picture processor."""
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    names = dict(enumerate(labels))
    config = transformers.ViTConfig(
        **size, image_size=32, patch_size=8, id2label=names, label2id={name: at for at, name in names.items()}
    )
    torch.manual_seed(2)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path, kind: str) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>", "<s>"]
    words = special + sorted({word for text in WORDS for word in text.split()})
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    single = "<s> $A </s>" if kind in ("clip", "bert") else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("</s>", 1), ("<s>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", bos_token="<s>"
    ).save_pretrained(folder)
    return len(words)


class Program:
    """What a weights file must not be able to do: unpickling it touches ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)
