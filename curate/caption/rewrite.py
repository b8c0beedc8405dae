"""A text model that rewrites captions, through transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

from curate.caption.backend import Ask, Draft
from curate.caption.config import CaptionConfig
from curate.caption.generate import answers
from curate.caption.loading import check_files, check_vocabulary, guarded, identity, model_folder, pick_dtype
from curate.clip_pictures import Fault
from curate.device import pick_device
from loader.errors import UsageError

KEY = "captions.rewrite_model"


class TextModel:
    """Questions in words -> answers; a `curate.caption.backend.Backend`. Chat models are asked as such."""

    def __init__(self, config: CaptionConfig) -> None:
        if config.rewrite_model is None:
            raise UsageError(f"{KEY} is empty; give the folder of a text model")
        self._config = config
        self._name: str = config.rewrite_model
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Finds out whether the model can be had: configuration and tokenizer; no weights are loaded.

        Raises:
            UsageError: it cannot, and what to do.
        """
        check_files(self._name, KEY)
        _tokenizer(self._name)

    def identity(self) -> Mapping[str, str]:
        """Name, sha256 of configuration and weights, and the version of transformers."""
        return identity(self._name, KEY, "transformers")

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """An answer for each question, or why the model cannot take it."""
        model, tokenizer = self._model()
        inputs = [_inputs(tokenizer, ask.prompt) for ask in asks]
        return answers(model, tokenizer, asks, inputs, self._config.batch_clips, self._config.threads)

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            folder = str(model_folder(self._name, KEY))
            tokenizer = _tokenizer(folder)
            device = pick_device(self._config.device)
            model = guarded(lambda: self._weights(folder, device), self._name, KEY)
            check_vocabulary(model, tokenizer, self._name, KEY)
            self._loaded = (model, tokenizer)
        return self._loaded

    def _weights(self, folder: str, device: str) -> Any:
        from transformers import AutoModelForCausalLM

        dtype = pick_dtype(self._config.dtype, device)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return model.eval().to(device)


def _tokenizer(name: str) -> Any:
    import transformers

    config = guarded(lambda: transformers.AutoConfig.from_pretrained(name), name, KEY)
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(
            f"{KEY}={name} is a model of type {config.model_type}, which writes no text; Qwen3 and Llama do"
        )
    return guarded(lambda: transformers.AutoTokenizer.from_pretrained(name), name, KEY)


def _inputs(tokenizer: Any, prompt: str) -> Mapping[str, Any]:
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        found = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    else:
        found = tokenizer(f"{prompt}\n\n", return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}
