"""Text model that rewrites captions."""

from collections.abc import Mapping
from typing import Any

from reelweave.curate.caption.models.backend import Ask
from reelweave.curate.caption.models.transformers_model import ModelKind
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import UsageError


def load_tokenizer(named: NamedModel) -> Any:
    """Load the tokenizer of a text generation model.

    Raises:
        UsageError: The model is of another kind.
    """
    import transformers

    config = named.config()
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(
            f"{named.key}={named.name} is a model of type {config.model_type}, which writes no text;"
            " Qwen3 and Llama do"
        )
    return named.tokenizer()


def _inputs(tokenizer: Any, ask: Ask) -> Mapping[str, Any]:
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": ask.prompt}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    else:
        encoded = tokenizer(f"{ask.prompt}\n\n", return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


# Models with a chat template get the prompt as a chat message.
TEXT = ModelKind("AutoModelForCausalLM", load_tokenizer, _inputs)
