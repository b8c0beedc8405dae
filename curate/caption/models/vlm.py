"""Processor and inputs of vision-language models."""

from collections.abc import Mapping
from typing import Any

from reelweave.curate.caption.models.backend import Ask
from reelweave.curate.caption.models.chat import model_inputs, takes_video
from reelweave.curate.caption.models.transformers_model import ModelKind
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import UsageError, first_line
from reelweave.loader.pretrained import load_pretrained


def load_processor(named: NamedModel) -> Any:
    """Load the processor of a vision-language model.

    Raises:
        UsageError: The model is of another kind, or has no chat template.
    """
    import transformers

    config = named.config()
    if type(config) not in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UsageError(
            f"{named.key}={named.name} is a model of type {config.model_type}, which does not caption pictures;"
            " Qwen2.5-VL, Qwen3-VL and SmolVLM do"
        )
    processor = named.load_guarded(lambda: load_pretrained(transformers.AutoProcessor, named.location()))
    if getattr(processor, "tokenizer", None) is None or not getattr(processor, "chat_template", None):
        raise UsageError(
            f"{named.key}={named.name} has no chat template; give a model tuned to follow instructions, with its"
            " chat_template.jinja"
        )
    named.load_guarded(lambda: takes_video(processor))
    return processor


def _inputs(processor: Any, ask: Ask) -> Mapping[str, Any] | Fault:
    try:
        return dict(model_inputs(processor, ask, takes_video(processor)))
    except ValueError as error:
        return Fault(f"the model does not take the pictures: {first_line(error)}")


VISION = ModelKind("AutoModelForImageTextToText", load_processor, _inputs)
