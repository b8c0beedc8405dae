"""Text embeddings of captions: one vector per token, stored beside the clip for training."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.models.device import Device, inference, pick_device, weights_sha256
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.pretrained import load_pretrained
from reelweave.loader.settings import SET, Settings

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_LENGTH_STEP = 64
_CLIP_MODELS = ("clip", "clip_text_model")

Array = NDArray[Any]


class TextEmbedConfig(Settings):
    """Text embedding of each caption, stored beside the clip as KEY.text.npy."""

    REVISION: ClassVar[int] = 0
    SPEED_ONLY: ClassVar = frozenset({"device", "threads", "batch"})
    READ_WITH: ClassVar = dict.fromkeys(("max_tokens", "dtype", "batch", "device", "threads"), ("model", SET))

    model: str | None = Field(
        None,
        description="folder of a transformers text encoder (T5, umT5, CLIP, BERT ...), or OWNER/NAME on the hub; empty:"
        " no text embedding",
    )
    max_tokens: int = Field(
        256,
        ge=1,
        le=4096,
        description="maximum caption length, tokens, within the limit of the model; longer captions are truncated",
    )
    dtype: Literal["float16", "float32"] = Field("float16", description="dtype of the stored array")
    batch: int = Field(16, ge=1, le=1024, description="captions per forward pass on a GPU")
    device: Device = Field("auto", description="device of the encoder; auto: the GPU, if there is one")
    threads: int = Field(1, ge=1, le=256, description="CPU threads of the encoder, on the CPU")


class TextEmbedder:
    """Function from captions to arrays. The encoder is loaded on first use and not pickled."""

    def __init__(self, config: TextEmbedConfig) -> None:
        if config.model is None:
            raise UsageError("text_embed.model is empty; give the folder of a text encoder")
        self._config = config
        self._named = NamedModel("text_embed.model", config.model)
        self._loaded: tuple[Any, Any, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Check that the encoder is available: its configuration, tokenizer and weights, without loading the weights.

        Raises:
            UsageError: The encoder is not available; the message says what to do.
        """
        self._named.check_files(_WEIGHTS)
        _loader(self._named.config())
        self._named.tokenizer()

    def check_folder(self) -> None:
        """Check what lies in a local folder, without loading anything; see `NamedModel.check_folder`."""
        self._named.check_folder(_WEIGHTS)

    def fingerprint(self) -> dict[str, str]:
        """Return the encoder's name and the sha256 of its weights, for the manifest."""
        return {"model": self._named.name, "weights_sha256": weights_sha256(self._encoder()[0])}

    def __call__(self, captions: Sequence[str]) -> list[Array]:
        """Return the encoder's output for each caption, [tokens, D], without padding.

        Equal captions give equal arrays, because all passes of a caption have one shape.

        Raises:
            RunError: The output exceeds the range of the dtype.
        """
        model, tokenizer, limit = self._encoder()
        tokens = [tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in captions]
        device = str(model.device)
        results: list[Array] = [np.empty(0)] * len(captions)
        for length, indices in passes([len(ids) for ids in tokens], limit, device, self._config.batch):
            vectors = self._encode(model, tokenizer, [tokens[index] for index in indices], length)
            for index, array in zip(indices, vectors, strict=True):
                results[index] = array
        return results

    def _encode(
        self, model: Any, tokenizer: Any, tokens: Sequence[Sequence[int]], length: int
    ) -> list[Array]:
        import torch

        device = str(model.device)
        rows = self._config.batch if device != "cpu" else 1
        ids = torch.full((rows, length), tokenizer.pad_token_id or 0)
        # Padding rows attend to one token, since attention to none gives NaN.
        mask = torch.zeros_like(ids)
        mask[:, 0] = 1
        for row, caption in enumerate(tokens):
            ids[row, : len(caption)] = torch.tensor(caption)
            mask[row, : len(caption)] = 1
        with inference(device, self._config.threads):
            states = model(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
        arrays = states.float().cpu().numpy()
        with np.errstate(over="ignore"):
            vectors = [
                arrays[row, : len(caption)].astype(self._config.dtype) for row, caption in enumerate(tokens)
            ]
        if not all(np.isfinite(array).all() for array in vectors):
            raise RunError(
                f"{self._named.name} gives numbers that {self._config.dtype} cannot hold;"
                " set text_embed.dtype=float32, or take other weights"
            )
        return vectors

    def _encoder(self) -> tuple[Any, Any, int]:
        """Return model, tokenizer and the maximum number of tokens, loaded on first use."""
        if self._loaded is None:
            import torch

            config, tokenizer = self._named.config(), self._named.tokenizer()
            device = pick_device(self._config.device)
            # T5 overflows in float16; bfloat16 halves a large encoder safely.
            dtype = torch.float32 if device == "cpu" else torch.bfloat16
            model = self._named.load_guarded(
                lambda: (
                    load_pretrained(_loader(config), self._named.location(), dtype=dtype).eval().to(device)
                )
            )
            self._named.check_vocabulary(model, tokenizer)
            self._loaded = (model, tokenizer, _limit(config, tokenizer, self._config.max_tokens))
        return self._loaded


def _loader(config: Any) -> Any:
    """Return the class that loads only the encoder of a model."""
    import transformers

    if config.model_type in _CLIP_MODELS:
        return transformers.CLIPTextModel
    if type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        return transformers.AutoModelForTextEncoding
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"a model of type {config.model_type} has no text encoder of its own; T5, umT5, CLIP and BERT have"
        )
    return transformers.AutoModel


def _limit(config: Any, tokenizer: Any, max_tokens: int) -> int:
    """Return the maximum number of tokens of a caption: the configured one, within the model's positions."""
    text = getattr(config, "text_config", config)
    positions = getattr(text, "max_position_embeddings", None) or max_tokens
    return int(min(max_tokens, tokenizer.model_max_length, positions))


def passes(lengths: Sequence[int], limit: int, device: str, batch: int) -> list[tuple[int, list[int]]]:
    """Group captions into forward passes: (padded length, indices of the captions).

    On the CPU each caption is a pass without padding, which costs nothing there. On a GPU a caption's padded
    length depends on itself only.
    """
    if device == "cpu":
        return [(max(1, length), [index]) for index, length in enumerate(lengths)]
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        padded = min(limit, max(1, math.ceil(length / _LENGTH_STEP)) * _LENGTH_STEP)
        groups.setdefault(padded, []).append(index)
    return [
        (padded, indices[start : start + batch])
        for padded, indices in sorted(groups.items())
        for start in range(0, len(indices), batch)
    ]
