"""Settings of captions."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from curate.models.device import Device

Backend = Literal["transformers", "vllm"]


class CaptionConfig(BaseModel, frozen=True, extra="forbid"):
    """Where captions come from: from people first, then from a model."""

    SPEED_ONLY: ClassVar = frozenset({"device", "threads", "batch_clips", "vllm_gpu_share"})

    sidecars: bool = Field(True, description="read NAME.txt and NAME.json beside NAME.mp4")
    container: bool = Field(
        False,
        description="fall back to the container's description, comment or title, where it reads like a caption",
    )
    max_chars: int = Field(
        4000, gt=0, description="longer written captions are cut at a word, longer ones of a model are faulty"
    )
    overwrite_written: bool = Field(
        False, description="the model captions every clip, not only those for which nobody wrote anything"
    )
    model: str | None = Field(
        None,
        description="folder of a transformers vision-language model (Qwen-VL, SmolVLM ...), or OWNER/NAME; empty: none",
    )
    backend: Backend = Field(
        "transformers", description="what runs the model; vllm is faster, and needs a GPU"
    )
    window_frames: int = Field(256, ge=1, description="the model sees this many frames of a clip at a time")
    min_window_frames: int = Field(128, ge=1, description="a shorter rest belongs to the window before it")
    fps: float = Field(2.0, gt=0, le=60, description="pictures per second the model sees")
    short_side_px: int = Field(
        448,
        ge=28,
        le=4096,
        description="larger pictures are scaled to this short side before the model sees them",
    )
    prompt: str = Field(
        "default",
        min_length=1,
        description="short, default, detailed or motion; any other text is the prompt itself",
    )
    max_new_tokens: int = Field(512, ge=1, le=32768, description="tokens of one window's caption at most")
    temperature: float = Field(
        0.0, ge=0, le=2, description="of the first attempt; 0 takes the likeliest word"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of the first attempt; each further one adds 1")
    checks: bool = Field(
        True,
        description="look for empty, repeating, refusing, cut-off and garbled captions, and ask again for those",
    )
    max_attempts: int = Field(
        3, ge=1, le=10, description="times the model is asked before a clip counts as failed"
    )
    retry_temperature: float = Field(
        0.7, gt=0, le=2, description="of further attempts, where the first one's is not higher"
    )
    min_words: int = Field(3, ge=1, description="shorter captions of a model are faulty")
    rewrite_model: str | None = Field(
        None,
        description="folder of a transformers text model that rewrites the caption, or OWNER/NAME; empty: none",
    )
    rewrite_prompt: str = Field(
        "default", min_length=1, description="default, or the text of the instruction; the caption follows it"
    )
    device: Device = Field("auto", description="auto: the GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the weights; auto: bfloat16 on a GPU, float32 on the CPU"
    )
    batch_clips: int = Field(
        8,
        ge=1,
        le=1024,
        description="clips captioned together; on a GPU as many windows of one shape run at once",
    )
    threads: int = Field(1, ge=1, le=256, description="processor threads of the model, when on the CPU")
    vllm_gpu_share: float = Field(0.85, gt=0, lt=1, description="share of the GPU's memory that vLLM takes")
    vllm_max_tokens: int = Field(32768, ge=256, description="tokens of prompt, pictures and caption in vLLM")

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.min_window_frames > self.window_frames:
            raise ValueError("min_window_frames must not be larger than window_frames")
        return self


def availability(config: CaptionConfig) -> str | None:
    """What a person should be told once when no model captions; None when one does."""
    if config.model is not None:
        return None
    return (
        "No caption model is set: clips have the captions that people wrote, and the others have none;"
        " set captions.model to the folder of a vision-language model to caption those"
    )
