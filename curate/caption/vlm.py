"""A vision-language model through transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

from curate.caption.backend import Ask, Draft
from curate.caption.chat import model_inputs, takes_video
from curate.caption.config import CaptionConfig
from curate.caption.generate import answers
from curate.caption.loading import (
    check_files,
    check_vocabulary,
    first_line,
    guarded,
    identity,
    model_folder,
    pick_dtype,
)
from curate.clip_pictures import Fault
from curate.device import pick_device
from loader.errors import UsageError

KEY = "captions.model"


class VisionModel:
    """Questions about pictures -> answers; a `curate.caption.backend.Backend`."""

    def __init__(self, config: CaptionConfig) -> None:
        if config.model is None:
            raise UsageError(f"{KEY} is empty; give the folder of a vision-language model")
        self._config = config
        self._name: str = config.model
        self._loaded: tuple[Any, Any, bool] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Finds out whether the model can be had: configuration, processor, chat template; no weights are loaded.

        Raises:
            UsageError: it cannot, and what to do.
        """
        check_files(self._name, KEY)
        load_processor(self._name)

    def identity(self) -> Mapping[str, str]:
        """Name, sha256 of configuration and weights, and the version of transformers."""
        return identity(self._name, KEY, "transformers")

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """An answer for each question, or why the model cannot take it."""
        model, processor, as_video = self._model()
        inputs = [_inputs(processor, ask, as_video) for ask in asks]
        config = self._config
        return answers(model, processor.tokenizer, asks, inputs, config.batch_clips, config.threads)

    def _model(self) -> tuple[Any, Any, bool]:
        """Model, processor, and whether they take videos."""
        if self._loaded is None:
            folder = str(model_folder(self._name, KEY))
            processor = load_processor(folder)
            device = pick_device(self._config.device)
            model = guarded(lambda: self._weights(folder, device), self._name, KEY)
            check_vocabulary(model, processor.tokenizer, self._name, KEY)
            self._loaded = (model, processor, takes_video(processor))
        return self._loaded

    def _weights(self, folder: str, device: str) -> Any:
        from transformers import AutoModelForImageTextToText

        dtype = pick_dtype(self._config.dtype, device)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return model.eval().to(device)


def load_processor(name: str) -> Any:
    """The processor of a vision-language model.

    Raises:
        UsageError: the model is of another kind, or cannot be talked to.
    """
    import transformers

    config = guarded(lambda: transformers.AutoConfig.from_pretrained(name), name, KEY)
    if type(config) not in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UsageError(
            f"{KEY}={name} is a model of type {config.model_type}, which does not caption pictures;"
            " Qwen2.5-VL, Qwen3-VL and SmolVLM do"
        )
    processor = guarded(lambda: transformers.AutoProcessor.from_pretrained(name), name, KEY)
    if getattr(processor, "tokenizer", None) is None or not getattr(processor, "chat_template", None):
        raise UsageError(
            f"{KEY}={name} has no chat template; give a model tuned to follow instructions, with its"
            " chat_template.jinja"
        )
    guarded(lambda: takes_video(processor), name, KEY)
    return processor


def _inputs(processor: Any, ask: Ask, as_video: bool) -> Mapping[str, Any] | Fault:
    try:
        return dict(model_inputs(processor, ask, as_video))
    except ValueError as error:
        return Fault(f"the model does not take the pictures: {first_line(error)}")
