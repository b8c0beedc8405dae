"""Models that write, through transformers: those that see and those that only read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curate.caption.config import CaptionConfig
from curate.caption.models.backend import Ask, Draft
from curate.caption.models.generate import answers
from curate.models.clip_frames import Fault
from curate.models.device import pick_device
from curate.models.hf_model import NamedModel


@dataclass(frozen=True)
class Kind:
    """What differs between kinds of models.

    Attributes:
        model_class: of transformers, which loads the weights.
        processor: what turns questions into tensors, without the weights; raises UsageError when the model is
            of another kind.
        inputs: tensors of one question, a batch of one; or why there are none.
    """

    model_class: str
    processor: Callable[[NamedModel], Any]
    inputs: Callable[[Any, Ask], Mapping[str, Any] | Fault]


class TransformersModel:
    """Questions -> answers; a `curate.caption.models.backend.Backend`."""

    def __init__(self, config: CaptionConfig, named: NamedModel, kind: Kind) -> None:
        self._config = config
        self._named = named
        self._kind = kind
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Finds out whether the model can be had; no weights are loaded.

        Raises:
            UsageError: it cannot, and what to do.
        """
        self._named.check_files()
        self._kind.processor(self._named)

    def identity(self) -> Mapping[str, str]:
        """Name, sha256 of configuration and weights, and the version of transformers."""
        return self._named.identity("transformers")

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """An answer for each question, or why the model cannot take it."""
        model, processor = self._model()
        inputs = [self._kind.inputs(processor, ask) for ask in asks]
        tokenizer = getattr(processor, "tokenizer", processor)
        return answers(model, tokenizer, asks, inputs, self._config.batch_clips, self._config.threads)

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            folder = str(self._named.folder())
            processor = self._kind.processor(self._named)
            model = self._named.guarded(lambda: self._weights(folder))
            self._named.check_vocabulary(model, getattr(processor, "tokenizer", processor))
            self._loaded = (model, processor)
        return self._loaded

    def _weights(self, folder: str) -> Any:
        import torch
        import transformers

        device, dtype = pick_device(self._config.device), self._config.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        model = getattr(transformers, self._kind.model_class).from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True
        )
        return model.eval().to(device)
