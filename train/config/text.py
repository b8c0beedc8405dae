"""Configuration of text encoders: trainable hashed words, or frozen published encoders."""

from typing import Literal

from pydantic import Field

from reelweave.loader.settings import Settings


class HashedTextConfig(Settings):
    """Trainable embeddings of hashed words: needs no download and no tokenizer.

    It has no word order: to models of ours, captions of the same words are equal in any order.
    """

    kind: Literal["hashed"] = "hashed"
    vocabulary: int = Field(4096, ge=1, description="rows of the embedding table that words are hashed into")
    width: int = Field(128, ge=1, description="width of a word's embedding")
    max_text_tokens: int = Field(64, ge=1, description="words of a caption in use; the rest is cut off")


class PublishedTextConfig(Settings):
    """Location and limits of a text encoder of transformers."""

    name: str = Field(description="name on the Hugging Face hub, or a local folder")
    subfolder: str = Field("", description="subfolder of the encoder in a pipeline, for example text_encoder")
    tokenizer_subfolder: str = Field(
        "", description="subfolder of the tokenizer in a pipeline, for example tokenizer"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="dtype of the weights")
    max_text_tokens: int = Field(256, ge=1, description="tokens of a caption in use; the rest is cut off")


class PooledTextConfig(PublishedTextConfig):
    """A frozen encoder, such as CLIP's, with one pooled vector per caption."""

    max_text_tokens: int = Field(77, ge=1, description="tokens of a caption in use; the rest is cut off")


class TransformersTextConfig(PublishedTextConfig):
    """A frozen text encoder loaded through transformers."""

    kind: Literal["transformers"] = "transformers"
    padding: Literal["mask", "text"] = Field(
        "mask",
        description="mask: attention ignores padding; text: captions are padded to max_text_tokens and attended in"
        " full, as in CogVideoX",
    )
    template: str = Field("{}", description="prompt of the encoder, with {} for the caption")
    template_tokens: int = Field(
        0, ge=0, description="tokens of the template before the caption, which are cut off the context"
    )
    skipped_layers: int = Field(0, ge=0, description="number of last layers of the encoder to skip")
    pooled: PooledTextConfig | None = Field(
        None,
        description="second encoder with a pooled output, needed by HunyuanVideo; its vector is the first row of the"
        " context",
    )
