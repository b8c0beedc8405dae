"""How Energon is told to take clips and captions out of our samples, in a module that its worker processes import."""

from dataclasses import dataclass
from typing import Any

from megatron.energon import Cooker, DefaultTaskEncoder, Sample, basic_sample_keys
from megatron.energon.task_encoder import stateless


@dataclass
class Clip(Sample):
    clip: bytes
    caption: str


@stateless
def cook(sample: Any) -> Clip:
    caption = sample["txt"]
    text = caption.decode() if isinstance(caption, bytes) else caption
    return Clip(**basic_sample_keys(sample), clip=sample["mp4"], caption=text)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)
    decoder = None
