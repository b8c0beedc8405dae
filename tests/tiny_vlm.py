"""Tiny vision-language and text models saved on disk as real ones are, some of which say what a test wants.

A model with ``says`` has layers that add nothing, so that each token it writes depends on the one before: it says
the sentences word by word, the first by the likeliest word, the others only when drawn from. One without ``says``
has random weights, whose words depend on the pictures.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

Kind = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "llava"]

_WORDS = [
    "a",
    "the",
    "red",
    "kite",
    "boat",
    "flies",
    "over",
    "sea",
    "lake",
    "slowly",
    ".",
    "two",
    "people",
    "walk",
    "along",
    "street",
    "snow",
    "falls",
]
_QWEN = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_SMOL = ["<fake_token_around_image>", "<global-img>", "<image>", "<video>", "<end_of_utterance>"]
_ASSISTANT = ["assistant", "Assistant:"]
_SPECIAL = ["<pad>", "<unk>", "</s>", "user", *_ASSISTANT, *_QWEN, *_SMOL]
_QWEN_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_IMAGE_CHAT = (
    "{% for message in messages %}user {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'video' %}<video>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %} assistant"
)


def tiny_vlm(folder: Path, kind: Kind = "qwen2_vl", says: Sequence[str] = (), seed: int = 0) -> Path:
    """A vision-language model with its processor."""
    import transformers

    tokenizer = _tokenizer(says)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL}
    config = transformers.AutoConfig.for_model(kind, **_sizes(kind, len(tokenizer), ids))
    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    _save(model, tokenizer, folder, says)
    _processor(kind, tokenizer).save_pretrained(folder)
    return folder


def tiny_writer(folder: Path, says: Sequence[str] = (), chat: bool = True, seed: int = 0) -> Path:
    """A text model with its tokenizer."""
    import transformers

    tokenizer = _tokenizer(says)
    if chat:
        tokenizer.chat_template = _QWEN_CHAT
    torch.manual_seed(seed)
    config = transformers.MistralConfig(**_text(len(tokenizer)))
    _save(transformers.MistralForCausalLM(config), tokenizer, folder, says)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(says: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*_SPECIAL, *dict.fromkeys([*_WORDS, *(word for text in says for word in text.split())])]
    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=[*_QWEN, *_SMOL],
    )


def _text(vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _sizes(kind: Kind, vocabulary: int, ids: dict[str, int]) -> dict[str, Any]:
    text = _text(vocabulary)
    vision: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    if kind == "smolvlm":
        return {
            "text_config": {**text, "model_type": "llama"},
            "vision_config": {**vision, "image_size": 32, "patch_size": 8},
            "image_token_id": ids["<image>"],
            "scale_factor": 2,
            "tie_word_embeddings": False,
        }
    if kind == "llava":
        return {
            "text_config": {**text, "model_type": "llama"},
            "vision_config": {**vision, "model_type": "clip_vision_model", "image_size": 32, "patch_size": 8},
            "image_token_index": ids["<image>"],
            "image_seq_length": 16,
        }
    vision = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    elif kind == "qwen2_5_vl":
        vision |= {
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 32,
            "fullatt_block_indexes": [1],
        }
    else:
        vision |= {
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 32,
            "deepstack_visual_indexes": [0],
        }
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    text |= {"rope_parameters": rope, "head_dim": 32} if kind == "qwen3_vl" else {"rope_parameters": rope}
    return {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def _processor(kind: Kind, tokenizer: Any) -> Any:
    import transformers

    if kind == "llava":
        images = transformers.CLIPImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        )
        return transformers.LlavaProcessor(
            images,
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=_IMAGE_CHAT,
        )
    if kind == "smolvlm":
        size = {"longest_edge": 32}
        return transformers.SmolVLMProcessor(
            transformers.SmolVLMImageProcessor(size=size, max_image_size=size, do_image_splitting=False),
            tokenizer,
            transformers.SmolVLMVideoProcessor(size=size, max_image_size=size),
            image_seq_len=4,
            chat_template=_IMAGE_CHAT,
        )
    size = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    shape = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    videos = transformers.Qwen3VLVideoProcessor if kind == "qwen3_vl" else transformers.Qwen2VLVideoProcessor
    processors = {
        "qwen2_vl": transformers.Qwen2VLProcessor,
        "qwen2_5_vl": transformers.Qwen2_5_VLProcessor,
        "qwen3_vl": transformers.Qwen3VLProcessor,
    }
    if kind == "qwen3_vl":
        shape = {**shape, "size": {"shortest_edge": 16 * 16, "longest_edge": 48 * 48 * 24}}
    return processors[kind](
        transformers.Qwen2VLImageProcessor(**shape), tokenizer, videos(**shape), chat_template=_QWEN_CHAT
    )


def _save(model: Any, tokenizer: Any, folder: Path, says: Sequence[str]) -> None:
    if says:
        _teach(model, tokenizer, says)
    else:  # with weights as small as fresh ones are, one word would follow another whatever the pictures show
        for weight in model.parameters():
            weight.data *= 20 if weight.ndim > 1 else 1
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)


def _teach(model: Any, tokenizer: Any, says: Sequence[str]) -> None:
    """Makes a model say sentences: the embedding of a token is its number, the head knows what follows."""
    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert len(tokenizer) <= embed.shape[1], "the sentences have too many different words"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if (
                "visual" not in name
                and "vision" not in name
                and name.endswith(("o_proj.weight", "down_proj.weight"))
            ):
                weight.zero_()
        embed.zero_()
        head.zero_()
        for token in range(len(tokenizer)):
            embed[token, token] = 1.0
        for likeliness, text in zip((3.0, 2.9), says, strict=False):
            words = [tokenizer.convert_tokens_to_ids(word) for word in text.split()]
            for before, after in zip(words, [*words[1:], tokenizer.eos_token_id], strict=True):
                if head[after, before] == 0:
                    head[after, before] = likeliness
            for name in _ASSISTANT:
                before = tokenizer.convert_tokens_to_ids(name)
                if head[words[0], before] == 0:
                    head[words[0], before] = likeliness
