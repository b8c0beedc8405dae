"""Settings of captions and caption models."""

import re
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from reelweave.curate.caption.prompts import STRUCTURED
from reelweave.curate.models.device import Device
from reelweave.loader.settings import SET, Settings
from reelweave.loader.storage.config import check_endpoint

Backend = Literal["transformers", "vllm", "endpoint"]

MOST_VARIANTS = 8
"""Variants that one configuration may name."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_OTHER_CAPTIONS = {
    "default": "is the caption of the sample itself",
    "written": "are captions that people wrote",
}


class CaptionConfig(Settings, hide_input_in_errors=True):
    """Captions written by people first, then captions by a vision-language model."""

    REVISION: ClassVar[int] = 1
    ADDED: ClassVar = frozenset({"variants", "camera_terms", "evidence", "match"})
    SPEED_ONLY: ClassVar = frozenset(
        {"device", "threads", "batch_clips", "vllm_gpu_share", "endpoint_url", "endpoint_timeout_s"}
    )
    READ_WITH: ClassVar = {
        "endpoint_url": ("backend", ("endpoint",)),
        "endpoint_timeout_s": ("backend", ("endpoint",)),
        "vllm_gpu_share": ("backend", ("vllm",)),
        "vllm_max_tokens": ("backend", ("vllm",)),
        "rewrite_prompt": ("rewrite_model", SET),
        "min_words": ("checks", (True,)),
    } | dict.fromkeys(
        (
            "overwrite_written",
            "backend",
            "window_frames",
            "min_window_frames",
            "fps",
            "short_side_px",
            "prompt",
            "variants",
            "camera_terms",
            "evidence",
            "max_new_tokens",
            "temperature",
            "seed",
            "checks",
            "max_attempts",
            "retry_temperature",
            "rewrite_model",
            "device",
            "dtype",
            "batch_clips",
            "threads",
        ),
        ("model", SET),
    )

    sidecars: bool = Field(True, description="read captions from NAME.txt and NAME.json beside NAME.mp4")
    container: bool = Field(
        False,
        description="fall back to the description, comment or title of the container, if it reads like a caption",
    )
    max_chars: int = Field(
        4000,
        gt=0,
        description="maximum caption length, characters; longer written captions are cut at a word, longer answers of a"
        " model fail the checks",
    )
    overwrite_written: bool = Field(
        False, description="caption every clip by the model, even clips with a written caption"
    )
    model: str | None = Field(
        None,
        description="folder of a transformers vision-language model (Qwen-VL, SmolVLM ...), or OWNER/NAME on the hub;"
        " with backend=endpoint its name at the server; empty: no model",
    )
    backend: Backend = Field(
        "transformers",
        description="inference library; vllm: faster, needs a GPU; endpoint: a server with OpenAI's chat protocol",
    )
    endpoint_url: str | None = Field(
        None,
        description="address of the server for backend=endpoint, such as http://host:8000/v1; its API key, if any, is"
        " read from REELWEAVE_CAPTIONS_KEY in the environment",
    )
    endpoint_timeout_s: float = Field(
        600.0,
        gt=0,
        description="maximum time for one answer of the server, with its queue and all retries, in seconds",
    )
    window_frames: int = Field(
        256, ge=1, description="maximum length of a window, which gets a caption of its own, frames"
    )
    min_window_frames: int = Field(
        128,
        ge=1,
        description="minimum length of the last window, frames; a shorter rest joins the window before",
    )
    fps: float = Field(
        2.0, gt=0, le=60, description="sampling rate of the pictures in the prompt, pictures per second"
    )
    short_side_px: int = Field(
        448,
        ge=28,
        le=4096,
        description="short side to which larger pictures are scaled for the model, pixels",
    )
    prompt: str = Field(
        "default",
        min_length=1,
        description="named prompt (short, default, long, detailed or motion), or the text of a prompt",
    )
    variants: dict[str, str] = Field(
        {},
        description="further captions of each kept clip by a name, for captions.parquet: a named prompt as in `prompt`,"
        " or structured (JSON of subject, action, camera, light and style), or the text of a prompt",
    )
    camera_terms: bool = Field(
        False,
        description="tell the model the measured movement of the camera, and ask again where a caption contradicts it;"
        " needs the stage reelweave.curate.models.camera:CameraMotion",
    )
    evidence: tuple[str, ...] = Field(
        (),
        max_length=8,
        description="columns of the input list that the model is shown beside the pictures, such as title",
    )
    match: bool = Field(
        False,
        description="score caption_match: cosine of a clip and its caption, by the model of embed.backend=open_clip;"
        " filters.min_caption_match needs it, too, and measures it",
    )
    max_new_tokens: int = Field(
        512, ge=1, le=32768, description="maximum length of a window's caption, tokens"
    )
    temperature: float = Field(
        0.0, ge=0, le=2, description="sampling temperature of the first attempt; 0: greedy decoding"
    )
    seed: int = Field(
        0, ge=0, lt=2**31, description="random seed of the first attempt; each further attempt adds 1"
    )
    checks: bool = Field(
        True,
        description="reject empty, repetitive, refusing, truncated and garbled captions, and generate them again",
    )
    max_attempts: int = Field(3, ge=1, le=10, description="attempts per caption before the clip fails")
    retry_temperature: float = Field(
        0.7, gt=0, le=2, description="minimum sampling temperature of further attempts"
    )
    min_words: int = Field(3, ge=1, description="minimum length of a model's caption, words")
    rewrite_model: str | None = Field(
        None,
        description="folder of a transformers text model that rewrites each caption, or OWNER/NAME on the hub; empty:"
        " no rewriting",
    )
    rewrite_prompt: str = Field(
        "default",
        min_length=1,
        description="rewriting instruction, put before the caption: default, or the text of one",
    )
    device: Device = Field("auto", description="device of the models; auto: the GPU, if there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype of the weights; auto: bfloat16 on a GPU, float32 on the CPU"
    )
    batch_clips: int = Field(
        8,
        ge=1,
        le=1024,
        description="clips captioned together. On a GPU also the maximum batch of windows of equal shape; with"
        " backend=endpoint the number of requests in flight (at most 64)",
    )
    threads: int = Field(1, ge=1, le=256, description="CPU threads of the model, on the CPU")
    vllm_gpu_share: float = Field(0.85, gt=0, lt=1, description="share of the GPU's memory for vLLM")
    vllm_max_tokens: int = Field(
        32768, ge=256, description="context length in vLLM: prompt, pictures and caption together, tokens"
    )

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.min_window_frames > self.window_frames:
            raise ValueError("min_window_frames must not be larger than window_frames")
        return self

    @field_validator("endpoint_url")
    @classmethod
    def _refuse_secrets(cls, url: str | None) -> str | None:
        secrets = "the API key comes from REELWEAVE_CAPTIONS_KEY in the environment"
        return None if url is None else check_endpoint(url, secrets)

    @field_validator("variants")
    @classmethod
    def _check_names(cls, variants: dict[str, str]) -> dict[str, str]:
        for name in variants:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name; use at most 32 small letters, digits, - and _")
            if name in _OTHER_CAPTIONS:
                raise ValueError(f"choose another name than {name}, which {_OTHER_CAPTIONS[name]}")
        if len(variants) > MOST_VARIANTS:
            raise ValueError(f"{len(variants)} names; at most {MOST_VARIANTS} are asked for")
        return variants

    @model_validator(mode="after")
    def _endpoint_is_named(self) -> Self:
        if self.model is not None and self.backend == "endpoint" and self.endpoint_url is None:
            raise ValueError("backend=endpoint needs endpoint_url, such as http://host:8000/v1")
        return self

    def of_caption(self) -> "CaptionConfig":
        """Return the settings that decide the caption itself, without those of its variants."""
        return self.model_copy(update={"variants": {}, "match": False})

    def of_variant(self, name: str) -> "CaptionConfig":
        """Return the settings that decide one variant; those of written captions are no part of them."""
        prompt = self.variants[name].strip()
        unread: dict[str, object] = {"sidecars": True, "container": False, "overwrite_written": False}
        if prompt == STRUCTURED:
            unread |= {"rewrite_model": None, "rewrite_prompt": "default"}
        return self.of_caption().model_copy(update={"prompt": prompt, **unread})


def availability(config: CaptionConfig) -> str | None:
    """Return the warning for a configuration without a caption model, or None with one."""
    if config.model is not None:
        return None
    return (
        "No caption model is set: clips have the captions that people wrote, and the others have none;"
        " set captions.model to the folder of a vision-language model to caption those"
    )
