"""Text generation through transformers, with vision-language and text models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.models.backend import Ask, Draft
from reelweave.curate.caption.models.generate import answers
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.device import pick_device
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.pretrained import load_pretrained


@dataclass(frozen=True)
class ModelKind:
    """Differences between kinds of models.

    Attributes:
        model_class: Class of transformers that loads the weights.
        processor: Loader of the processor, without the weights; raises UsageError for a model of another
            kind.
        inputs: Conversion of one question to tensors, a batch of one; or to a fault.
    """

    model_class: str
    processor: Callable[[NamedModel], Any]
    inputs: Callable[[Any, Ask], Mapping[str, Any] | Fault]


class TransformersModel:
    """Text generation by transformers; a `reelweave.curate.caption.models.backend.Backend`."""

    def __init__(self, config: CaptionConfig, named: NamedModel, kind: ModelKind) -> None:
        self._config = config
        self._named = named
        self._kind = kind
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Check that the model is available; no weights are loaded.

        Raises:
            UsageError: The model is not available; the message says what to do.
        """
        self._named.check_files()
        self._kind.processor(self._named)

    def identity(self) -> Mapping[str, str]:
        """Return name, sha256 of configuration and weights, and the version of transformers."""
        return self._named.identity("transformers")

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """Return an answer or a fault for each question."""
        model, processor = self._model()
        inputs = [self._kind.inputs(processor, ask) for ask in asks]
        tokenizer = getattr(processor, "tokenizer", processor)
        return answers(model, tokenizer, asks, inputs, self._config.batch_clips, self._config.threads)

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            folder = str(self._named.folder())
            processor = self._kind.processor(self._named)
            model = self._named.load_guarded(lambda: self._weights(folder))
            self._named.check_vocabulary(model, getattr(processor, "tokenizer", processor))
            self._loaded = (model, processor)
        return self._loaded

    def _weights(self, folder: str) -> Any:
        import torch
        import transformers

        device, dtype = pick_device(self._config.device), self._config.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        kind = getattr(transformers, self._kind.model_class)
        model = load_pretrained(kind, folder, dtype=getattr(torch, dtype), use_safetensors=True)
        return model.eval().to(device)
