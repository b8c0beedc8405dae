"""Questions in the format of a vision-language model: as a video where it accepts one, else as images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.caption.models.backend import Ask

# Processors take display times as frame numbers of a video with this rate.
_TICKS_PER_S = 1000


def takes_video(processor: Any) -> bool:
    """Return True when the processor and its chat template accept videos; others get images."""
    if getattr(processor, "video_processor", None) is None:
        return False
    token = getattr(processor, "video_token", None) or "<video>"
    return bool(token in _render_prompt(processor, [{"type": "video"}], "What is seen?"))


def chat_text(processor: Any, ask: Ask, as_video: bool) -> str:
    """Return the conversation as text, with a placeholder for the video or for each picture."""
    count = 0 if ask.pictures is None else len(ask.pictures)
    media = [{"type": "video"}] if as_video else [{"type": "image"}] * count
    return _render_prompt(processor, media, ask.prompt)


def video(ask: Ask) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return the pictures of a question as a video, and its metadata for transformers and vLLM.

    A single picture is repeated: models that pair pictures reject a single one.

    Raises:
        ValueError: There are no pictures.
    """
    if ask.pictures is None or not len(ask.pictures):
        raise ValueError("there are no pictures")
    again = 2 if len(ask.pictures) == 1 else 1
    frame_indices = [round(time_s * _TICKS_PER_S) for time_s in ask.times_s] * again
    metadata = {
        "fps": float(_TICKS_PER_S),
        "total_num_frames": max(round(ask.duration_s * _TICKS_PER_S), frame_indices[-1] + 1),
        "duration": ask.duration_s,
        "frames_indices": frame_indices,
        "video_backend": "pyav",
    }
    return np.repeat(ask.pictures, again, axis=0), metadata


def model_inputs(processor: Any, ask: Ask, as_video: bool) -> Any:
    """Return token numbers and pictures of a question as tensors, a batch of one.

    Raises:
        ValueError: The processor rejects the pictures.
    """
    text = [chat_text(processor, ask, as_video)]
    if as_video:
        pictures, metadata = video(ask)
        return processor(
            text=text,
            videos=[list(pictures)],
            video_metadata=[[metadata]],
            do_sample_frames=False,
            return_tensors="pt",
        )
    images = [] if ask.pictures is None else list(ask.pictures)
    return processor(text=text, images=[images], return_tensors="pt")


def _render_prompt(processor: Any, media: list[dict[str, str]], prompt: str) -> str:
    messages = [{"role": "user", "content": [*media, {"type": "text", "text": prompt}]}]
    # Processors warn about a switch that is unknown to their template.
    switches = {"enable_thinking": False} if "enable_thinking" in str(processor.chat_template) else {}
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **switches)
    return str(text)
