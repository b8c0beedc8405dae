"""Configuration of image-to-video training; importing it loads no torch."""

from pydantic import Field

from reelweave.loader.settings import Settings


class FirstFramesConfig(Settings):
    """Image to video: the model is given the first frames of a clip, and makes the rest."""

    max_latent_frames: int = Field(
        1,
        ge=1,
        description="a sample is given 1 to this many latent frames, drawn evenly; 1 is the first video frame",
    )
    dropout: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of samples trained without given frames, so that text alone and image guidance work, too",
    )
