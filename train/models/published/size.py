"""Sizes of published transformers, for plans without their files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSize:
    """Transformer with patches of 1 x 2 x 2, and the latents that it reads.

    Attributes:
        layers: number of blocks.
        hidden: width of a token.
        heads: number of attention heads.
        inner: width within the MLP.
        parameters: number of parameters, of both where there are two experts.
        text_tokens: number of text tokens that video tokens attend to.
        passes: passes of guidance in each step; 1 for distilled models.
        compression: video frames, pixel rows and columns per latent of its causal VAE.
        channels: channels of a latent.
    """

    layers: int
    hidden: int
    heads: int
    inner: int
    parameters: float
    text_tokens: int
    passes: int = 2
    compression: tuple[int, int, int] = (4, 8, 8)
    channels: int = 16
