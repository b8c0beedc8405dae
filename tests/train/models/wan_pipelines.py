"""Tiny Wan pipelines in the forms that are published, and the same pipelines of diffusers."""

import json

import numpy as np
import torch

from reelweave.train.config.run import TrainConfig
from tests.train import diffusers_models
from tests.train.clips import tiny_config
from tests.train.models import diffusers_vaes

CHANNELS, TEXT_TOKENS = 4, 6
FORMS = {
    "2.2 A14B T2V": {"experts": True, "boundary_ratio": 0.75},
    "2.2 A14B I2V": {"picture": True, "experts": True, "boundary_ratio": 0.75},
    "2.2 TI2V 5B": {"expand_timesteps": True},
    "2.1 T2V": {},
}
"""What tells one from the other."""
IMAGE = {"2.2 A14B I2V": {"dropout": 0.0}, "2.2 TI2V 5B": {"dropout": 0.1}}
"""First frames that the forms are trained with."""


def transformer(seed: int, more_channels: int = 0, channels: int = CHANNELS):
    torch.manual_seed(seed)
    sizes = {"num_attention_heads": 2, "in_channels": channels + more_channels, "out_channels": channels}
    model = diffusers_models.transformer("WanTransformer3DModel", sizes | {"num_layers": 1})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def vae():
    return diffusers_vaes.drawn("wan", seed=7).eval()


def publish(folder, form: str, channels: int = CHANNELS):
    """Write a pipeline's folder: its model_index.json, transformers and, for its channels, the VAE."""
    told = dict(FORMS[form])
    experts, more = told.pop("experts", False), 4 + channels if told.pop("picture", False) else 0
    for number, name in enumerate(("transformer", "transformer_2")[: 1 + experts]):
        transformer(number, more, channels).save_pretrained(folder / name)
    if channels == CHANNELS:
        vae().save_pretrained(folder / "vae")
    part = ["diffusers", "WanTransformer3DModel"]
    index = {"transformer": part, "transformer_2": part if experts else [None, None], **told}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def configured(folder, form: str, **update) -> TrainConfig:
    """The configuration of a run with a published folder."""
    values = {
        "model": {"kind": "diffusers", "name": str(folder), "text_tokens": TEXT_TOKENS},
        "tokenizer": {"kind": "diffusers", "name": str(folder)},
        "text": {"kind": "hashed", "width": 8, "max_text_tokens": 4},
        "objective": {"name": "flow", "shift": {"kind": "constant", "factor": 3.0}},
        "first_frames": IMAGE.get(form),
    }
    values["model"] |= update.pop("model", {})
    return TrainConfig.model_validate({**tiny_config().model_dump(), **values, **update})


def pipeline(folder, form: str, is_published: bool = False):
    """The pipeline of diffusers on a published folder, with the scheduler that it is published with or ours."""
    import diffusers

    class EvenTimes(diffusers.FlowMatchEulerDiscreteScheduler):
        """The scheduler at the times of ours, which start at 1 where the pipeline's own choice does not."""

        def set_timesteps(self, num_inference_steps, device=None):
            super().set_timesteps(
                sigmas=np.linspace(1, 1 / num_inference_steps, num_inference_steps), device=device
            )

    told = dict(FORMS[form])
    experts, _ = told.pop("experts", False), told.pop("picture", None)
    loaded = [
        diffusers.WanTransformer3DModel.from_pretrained(folder, subfolder=name)
        for name in ("transformer", "transformer_2")[: 1 + experts]
    ]
    parts = {"transformer": loaded[0], "transformer_2": loaded[1] if experts else None, **told}
    unipc = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    scheduler = diffusers.UniPCMultistepScheduler(**unipc) if is_published else EvenTimes(shift=3.0)
    common = {"tokenizer": None, "text_encoder": None, "scheduler": scheduler}
    parts["vae"] = diffusers.AutoencoderKLWan.from_pretrained(folder, subfolder="vae")
    if form in IMAGE:
        pipe = diffusers.WanImageToVideoPipeline(**common, **parts, image_encoder=None, image_processor=None)
    else:
        pipe = diffusers.WanPipeline(**common, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def calls_of(models) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return a list that grows by (number of the model, input, times) with every call of one of these models."""
    calls: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for number, model in enumerate(models):
        model.register_forward_pre_hook(
            lambda _, __, given, number=number: calls.append(
                (number, given["hidden_states"].clone(), given["timestep"].clone())
            ),
            with_kwargs=True,
        )
    return calls
