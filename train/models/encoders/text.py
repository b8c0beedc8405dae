"""Text encoders: from captions to a padded context and its mask."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.pretrained import check_model_type, load_pretrained
from reelweave.loader.text import words
from reelweave.train.config.text import (
    HashedTextConfig,
    PooledTextConfig,
    PublishedTextConfig,
    TransformersTextConfig,
)
from reelweave.train.models.encoders.offload import offload
from reelweave.train.models.transfer import send, send_one


class EncodedText(NamedTuple):
    """Text of B captions, padded behind the valid tokens.

    Attributes:
        context: embeddings, float [B, L, D].
        mask: True for valid tokens, bool [B, L], on the device of the context.
        host_mask: the mask on the CPU.
    """

    context: torch.Tensor
    mask: torch.Tensor
    host_mask: torch.Tensor


class TextEncoder(nn.Module):
    """Interface of text encoders.

    Attributes:
        width: width D of the context.
        pooled_width: number of pooled caption values in the first row of the context; 0: that row is a token.
        lockstep: True if ranks share the weights, so that all of them must encode equally often.
        most_tokens: number of tokens of a caption in use; 0: all.
        most_pooled_tokens: the same of the encoder of pooled captions; 0: there is none.
    """

    width: int
    most_tokens: int = 0
    most_pooled_tokens: int = 0
    pooled_width: int = 0
    lockstep: bool = False

    def forward(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context, float [B, L, D], and the mask of valid tokens, bool [B, L].

        L fits the longest caption. Every caption, also an empty one, has at least one valid token. Padding
        follows the valid tokens.
        """
        encoded = self.encode(captions)
        return encoded.context, encoded.mask

    def encode(self, captions: Sequence[str]) -> EncodedText:
        """Encode captions as `forward` does; the host does not wait for the device."""
        raise NotImplementedError

    def join(self) -> None:
        """Take part in an encoding of other ranks, where ranks share the weights."""
        if self.lockstep:
            self.encode([""])

    @property
    def frozen(self) -> list[Any]:
        """Return the published encoders that this one runs, without trained weights."""
        return []

    def lengths(self, captions: Sequence[str]) -> list[int]:
        """Return the number of valid tokens of each caption, without encoding it."""
        raise NotImplementedError

    def cut(self, captions: Sequence[str]) -> list[bool]:
        """Return whether each caption has more tokens than are in use."""
        return [False] * len(captions)

    def cut_pooled(self, captions: Sequence[str]) -> list[bool]:
        """Return whether each caption has more tokens than the encoder of pooled captions reads."""
        return [False] * len(captions)


class HashedTextEncoder(TextEncoder):
    """Trainable embeddings of hashed words: a bag of words after a start token.

    A word's row is a stable hash of it. A run, its resumption and every rank thus agree without a vocabulary
    file; two words may share a row.
    """

    def __init__(self, config: HashedTextConfig) -> None:
        super().__init__()
        self.config = config
        self.width, self.most_tokens = config.width, config.max_text_tokens
        self.table = nn.Embedding(1 + config.vocabulary, config.width)

    def encode(self, captions: Sequence[str]) -> EncodedText:
        """Encode captions; the longest context is 1 + ``max_text_tokens``."""
        rows = [self._rows(caption) for caption in captions]
        length = max(map(len, rows))
        padded_BL = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        mask_BL = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
        rows_BL, sent_mask_BL = send([padded_BL, mask_BL], self.table.weight.device)
        return EncodedText(self.table(rows_BL), sent_mask_BL, mask_BL)

    def lengths(self, captions: Sequence[str]) -> list[int]:
        return [len(self._rows(caption)) for caption in captions]

    def cut(self, captions: Sequence[str]) -> list[bool]:
        return [len(words(caption, self.most_tokens + 1)) > self.most_tokens for caption in captions]

    def _rows(self, caption: str) -> list[int]:
        return [0, *(1 + self._hash(word) for word in words(caption, self.config.max_text_tokens))]

    def _hash(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.config.vocabulary


class TransformersTextEncoder(TextEncoder):
    """Frozen encoder from the Hugging Face hub or a local folder; only the encoder half of T5 and the like.

    Weights are read from safetensors only, and no code that comes with a model is run.

    Args:
        config: name and limits.
        meta: leave weights on the meta device, unread.

    Raises:
        UsageError: the model is missing or cannot be loaded that way.
    """

    def __init__(self, config: TransformersTextConfig, meta: bool = False) -> None:
        super().__init__()
        self.config = config
        self.tokenizer, self.model = _load(config, "text", meta)
        self._device: torch.device | None = None
        self.width, self.most_tokens = int(self.model.config.hidden_size), config.max_text_tokens
        self.pooled: _Pooled | None = None
        if config.pooled is not None:
            self.pooled = _Pooled(config.pooled, meta)
            self.pooled_width = self.pooled.width
            self.most_pooled_tokens = config.pooled.max_text_tokens
            if self.pooled_width > self.width:
                raise UsageError(
                    f"text.pooled.name={config.pooled.name!r} gives {self.pooled_width} values, more than the"
                    f" {self.width} of a row of the context"
                )

    def offload_(self, device: torch.device) -> None:
        """Keep the weights on the host from now on, and compute on a device."""
        for model in self.frozen:
            offload(model, device)
        self._device = device
        if self.pooled is not None:
            self.pooled.device = device

    def _apply(self, fn: Any, recurse: bool = True) -> "TransformersTextEncoder":
        if self._device is not None:
            return self  # nothing moves weights that stay on the host
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own
        for model in self.frozen:
            # From the meta device, a weight of two modules would come twice.
            model.tie_weights()
        return self

    @property
    def frozen(self) -> list[Any]:
        return [self.model] if self.pooled is None else [self.model, self.pooled.model]

    @torch.no_grad()
    def encode(self, captions: Sequence[str]) -> EncodedText:
        """Encode captions; the longest context is ``max_text_tokens``, plus one row with ``pooled``."""
        config, tokens = self.config, self._tokens(captions)
        mask_BL = self._counting(tokens["attention_mask"])
        sent_mask_BL, *sent = send([mask_BL, *tokens.values()], self._device or self.model.device)
        model_inputs = dict(zip(tokens, sent, strict=True))
        output = self.model(**model_inputs, output_hidden_states=config.skipped_layers > 0)
        layers = output.hidden_states if config.skipped_layers else [output.last_hidden_state]
        context_BLD = layers[-1 - config.skipped_layers][:, config.template_tokens :].float()
        if self.pooled is not None:
            row_B1D = F.pad(self.pooled(captions), (0, self.width - self.pooled_width))[:, None]
            context_BLD = torch.cat([row_B1D, context_BLD], dim=1)
        return EncodedText(context_BLD, sent_mask_BL, mask_BL)

    def lengths(self, captions: Sequence[str]) -> list[int]:
        counts: list[int] = self._counting(self._tokens(captions)["attention_mask"]).sum(dim=1).tolist()
        return counts

    def cut(self, captions: Sequence[str]) -> list[bool]:
        """Return whether each caption has more tokens than are in use; see `cut_pooled` for the second encoder."""
        most = self.config.template_tokens + self.most_tokens
        rows = self.tokenizer(self._fill_captions(captions), verbose=False)["input_ids"]
        return [len(row) > most for row in rows]

    def cut_pooled(self, captions: Sequence[str]) -> list[bool]:
        return [False] * len(captions) if self.pooled is None else self.pooled.cut(captions)

    def _fill_captions(self, captions: Sequence[str]) -> list[str]:
        return [self.config.template.replace("{}", caption) for caption in captions]

    def _tokens(self, captions: Sequence[str]) -> Any:
        """Tokenize captions for the encoder."""
        config = self.config
        tokens = self.tokenizer(
            self._fill_captions(captions),
            padding=True if config.padding == "mask" else "max_length",
            truncation=True,
            max_length=config.template_tokens + config.max_text_tokens,
            return_tensors="pt",
        )
        if tokens["input_ids"].shape[1] <= config.template_tokens:
            # Without special tokens, a batch of empty captions has length 0.
            tokens = self.tokenizer.pad(tokens, padding="max_length", max_length=config.template_tokens + 1)
        if config.padding == "text":
            tokens["attention_mask"] = torch.ones_like(tokens["attention_mask"])
        tokens["attention_mask"] = tokens["attention_mask"].long()
        return tokens

    def _counting(self, read_BL: torch.Tensor) -> torch.Tensor:
        """Return the mask of valid context tokens, bool, from the encoder's attention mask."""
        mask_BL = read_BL[:, self.config.template_tokens :].bool()
        # Without special tokens, an empty caption has no token to attend to.
        mask_BL[:, 0] |= ~mask_BL.any(dim=1)
        return mask_BL if self.pooled is None else F.pad(mask_BL, (1, 0), value=True)


class _Pooled(nn.Module):
    """Encoder of one vector per caption."""

    def __init__(self, config: PooledTextConfig, meta: bool) -> None:
        super().__init__()
        self.config = config
        self.tokenizer, self.model = _load(config, "text.pooled", meta)
        self.device: torch.device | None = None
        self.width = int(self.model.config.hidden_size)

    def forward(self, captions: Sequence[str]) -> torch.Tensor:
        """Return pooled vectors, float32 [B, width]."""
        tokens = self.tokenizer(
            list(captions),
            padding="max_length",
            truncation=True,
            max_length=self.config.max_text_tokens,
            return_tensors="pt",
        )
        # Without a mask, as in HunyuanVideo's pipeline: CLIP is causal, and padding follows its pooled token.
        ids_BL = send_one(tokens["input_ids"], self.device or self.model.device)
        pooled_BD: torch.Tensor = self.model(ids_BL).pooler_output
        return pooled_BD.float()

    def cut(self, captions: Sequence[str]) -> list[bool]:
        """Return whether each caption has more tokens than are read."""
        rows = self.tokenizer(list(captions), verbose=False)["input_ids"]
        return [len(row) > self.config.max_text_tokens for row in rows]


def _load(config: PublishedTextConfig, key: str, meta: bool) -> tuple[Any, Any]:
    """Load a tokenizer that pads on the right, and a frozen encoder, on the meta device if its weights are unread."""
    check_text_type(config, key)
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
        from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        location = {"subfolder": config.subfolder}
        description = load_pretrained(AutoConfig, config.name, **location)
        # The encoder's own class does not load a T5's decoder.
        encoder = type(description) in MODEL_FOR_TEXT_ENCODING_MAPPING
        kind, dtype = AutoModelForTextEncoding if encoder else AutoModel, getattr(torch, config.dtype)
        if meta:
            with torch.device("meta"):
                model = kind.from_config(description, dtype=dtype).eval()
        else:
            model = load_pretrained(kind, config.name, dtype=dtype, use_safetensors=True, **location)
        tokenizer = load_pretrained(
            AutoTokenizer, config.name, subfolder=config.tokenizer_subfolder, padding_side="right"
        )
    except (ImportError, OSError, ValueError) as error:
        raise _not_loaded(config, key, error) from error
    model.requires_grad_(False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model


def check_text_type(config: PublishedTextConfig, key: str) -> None:
    """Check that the type of an encoder in a local folder is known, without loading anything.

    Raises:
        UsageError: it is not.
    """
    folder = Path(config.name) / config.subfolder
    if not (folder / "config.json").is_file():
        return  # a name on the hub, or missing, which the library says
    try:
        check_model_type(folder)
    except (OSError, ValueError) as error:
        raise _not_loaded(config, key, error) from error


def _not_loaded(config: PublishedTextConfig, key: str, error: Exception) -> UsageError:
    return UsageError(
        f"{key}.name={config.name!r} could not be loaded ({first_line(error)}); pass a hub "
        "name, or the path of a local folder with config.json, model.safetensors and its tokenizer"
    )


def build_text_encoder(config: HashedTextConfig | TransformersTextConfig, meta: bool = False) -> TextEncoder:
    """Build a text encoder; with ``meta`` a published one is left on the meta device, without its weights."""
    if isinstance(config, HashedTextConfig):
        return HashedTextEncoder(config)
    return TransformersTextEncoder(config, meta)
