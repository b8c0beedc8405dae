"""Text encoders: captions in, a padded context and its mask out."""

import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from loader.errors import UsageError, first_line
from loader.text import words
from train.config import HashedTextConfig, TransformersTextConfig


class TextEncoder(nn.Module):
    """What the trainer asks of an encoder.

    Attributes:
        width: width D of the context.
    """

    width: int

    def forward(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """The context, float [B, L, D], and which of its tokens count, bool [B, L].

        L fits the longest caption. Every caption has at least one token that counts, the empty one too.
        """
        raise NotImplementedError


class HashedTextEncoder(TextEncoder):
    """Trainable embeddings of hashed words: a bag of words, with a start token before them.

    A word's row is a stable hash of it, so a run, its resumption and every rank agree without a vocabulary
    file; two words may share a row.
    """

    def __init__(self, config: HashedTextConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.table = nn.Embedding(1 + config.vocabulary, config.width)

    def forward(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``TextEncoder``; the longest context is 1 + ``max_text_tokens``."""
        rows = [self._rows(caption) for caption in captions]
        length = max(map(len, rows))
        padded_BL = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        mask_BL = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
        device = self.table.weight.device
        return self.table(padded_BL.to(device)), mask_BL.to(device)

    def _rows(self, caption: str) -> list[int]:
        return [0, *(1 + self._hash(word) for word in words(caption, self.config.max_text_tokens))]

    def _hash(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.config.vocabulary


class TransformersTextEncoder(TextEncoder):
    """A frozen encoder from the Hugging Face hub or a local folder; of T5 and its like, the encoder half.

    Weights are read from safetensors only, and no code that comes with a model is run.

    Raises:
        UsageError: when the model is not there or cannot be loaded that way.
    """

    def __init__(self, config: TransformersTextConfig) -> None:
        super().__init__()
        self.config = config
        try:
            from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
            from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

            description = AutoConfig.from_pretrained(config.name, trust_remote_code=False)
            # The encoder's own class leaves a T5's decoder on the disk.
            encoder = type(description) in MODEL_FOR_TEXT_ENCODING_MAPPING
            self.model = (AutoModelForTextEncoding if encoder else AutoModel).from_pretrained(
                config.name, dtype=getattr(torch, config.dtype), use_safetensors=True, trust_remote_code=False
            )
            self.tokenizer = AutoTokenizer.from_pretrained(config.name, trust_remote_code=False)
        except (ImportError, OSError, ValueError) as error:
            raise UsageError(
                f"text.name={config.name!r} could not be loaded ({first_line(error)}); pass a hub "
                "name, or the path of a local folder with config.json, model.safetensors and its tokenizer"
            ) from error
        self.model.requires_grad_(False)
        self.width = int(self.model.config.hidden_size)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    @torch.no_grad()
    def forward(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``TextEncoder``; the longest context is ``max_text_tokens``."""
        tokens = self.tokenizer(
            list(captions),
            padding=True,
            truncation=True,
            max_length=self.config.max_text_tokens,
            return_tensors="pt",
        ).to(self.model.device)
        context_BLD = self.model(**tokens).last_hidden_state.float()
        mask_BL = tokens["attention_mask"].bool()
        # A tokenizer without special tokens leaves an empty caption nothing to attend to.
        mask_BL[:, 0] |= ~mask_BL.any(dim=1)
        return context_BLD, mask_BL


def build_text_encoder(config: HashedTextConfig | TransformersTextConfig) -> TextEncoder:
    """The encoder a configuration describes."""
    if isinstance(config, HashedTextConfig):
        return HashedTextEncoder(config)
    return TransformersTextEncoder(config)
