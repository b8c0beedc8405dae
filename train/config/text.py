"""The configuration of text encoders: hashed words that are trained, or published encoders that are frozen."""

from typing import Literal

from pydantic import BaseModel, Field


class HashedTextConfig(BaseModel, frozen=True, extra="forbid"):
    """Trainable embeddings of hashed words: needs no download and no tokenizer."""

    kind: Literal["hashed"] = "hashed"
    vocabulary: int = Field(4096, ge=1, description="rows of the embedding table words are hashed into")
    width: int = Field(128, ge=1, description="width of a word's embedding")
    max_text_tokens: int = Field(64, ge=1, description="words used of a caption")


class PublishedTextConfig(BaseModel, frozen=True, extra="forbid"):
    """Where a text encoder of transformers lies, and how much it reads."""

    name: str = Field(description="name on the Hugging Face hub, or a local folder")
    subfolder: str = Field("", description="of the encoder, where it is part of a pipeline: text_encoder")
    tokenizer_subfolder: str = Field(
        "", description="of its tokenizer, where it is part of a pipeline: tokenizer"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="type of its weights")
    max_text_tokens: int = Field(256, ge=1, description="tokens used of a caption")


class PooledTextConfig(PublishedTextConfig, frozen=True, extra="forbid"):
    """A frozen encoder, such as CLIP's, of which one vector stands for the whole caption."""

    max_text_tokens: int = Field(77, ge=1, description="tokens used of a caption")


class TransformersTextConfig(PublishedTextConfig, frozen=True, extra="forbid"):
    """A frozen text encoder loaded through transformers."""

    kind: Literal["transformers"] = "transformers"
    padding: Literal["mask", "text"] = Field(
        "mask",
        description="mask: padding of captions does not count; text: they are filled up to max_text_tokens, and padding"
        " is read and counts like words, as CogVideoX has it",
    )
    template: str = Field("{}", description="what the encoder reads, with {} for the caption")
    template_tokens: int = Field(
        0, ge=0, description="tokens of the template before the caption, which are cut off"
    )
    skipped_layers: int = Field(0, ge=0, description="last layers of the encoder that are left out")
    pooled: PooledTextConfig | None = Field(
        None,
        description="a second encoder, which HunyuanVideo needs; its vector is the first row of the context",
    )
