"""What every published family promises: the test of one publishes a tiny model and calls these."""

from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.attention.attend import Dense
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import TokenLayout, tokens
from reelweave.train.parallel.activations import checkpoint_block
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.generate import generate
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_trained
from tests.train.clips import ClipStream, tiny_config

CHANNELS, TEXT = 4, 8
"""Channels of latents and width of text of tiny models."""


def publish(model: torch.nn.Module, folder: Path, **settings) -> DiffusersConfig:
    """The configuration of a model, whose weights are drawn and lie in a pipeline's folder."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder / "transformer")
    return DiffusersConfig(name=str(folder), **settings)


def built(config: DiffusersConfig) -> Denoiser:
    return build_denoiser(config, CHANNELS, TEXT)


def inputs(B=2, M=5, size=(2, 4, 4)):
    """Latents, times, text and its mask."""
    torch.manual_seed(1)
    mask_BM = torch.ones(B, M, dtype=torch.bool)
    mask_BM[0, -2:] = False
    return torch.randn(B, CHANNELS, *size), torch.rand(B), torch.randn(B, M, TEXT), mask_BM


def pipeline_calls(pipe, one_frame=False, **given) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """What a pipeline asks its transformer in two steps: latents, times and answers."""
    calls = []
    pipe.set_progress_bar_config(disable=True)
    hook = pipe.transformer.register_forward_hook(
        lambda _, args, kwargs, out: calls.append((kwargs["hidden_states"], kwargs["timestep"], out[0])),
        with_kwargs=True,
    )
    settings = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 2, "output_type": "latent"}
    if one_frame:  # a pipeline of pictures
        del settings["num_frames"]
    pipe(generator=torch.Generator().manual_seed(0), **settings, **given)
    hook.remove()
    assert len(calls) == 2
    return calls


def filled(context_BMD: torch.Tensor, mask_BM: torch.Tensor, length: int = 512) -> torch.Tensor:
    """Text with zeros where it is masked and up to a length, as pipelines without a mask take it."""
    return F.pad(context_BMD * mask_BM[..., None], (0, 0, 0, length - context_BMD.shape[1]))


@torch.no_grad()
def predicts_as_its_pipeline(denoiser, calls, context, mask, time_unit=1000.0, frames_first=False) -> None:
    """The answers are those within the pipeline's loop, and the time counts."""
    for latents, times, answer in calls:
        x_BCTHW, expected = (x.transpose(1, 2) if frames_first else x for x in (latents, answer))
        t_B = times / time_unit
        y_BCTHW = denoiser(x_BCTHW, t_B, context, mask)
        torch.testing.assert_close(y_BCTHW, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        other = denoiser(x_BCTHW, t_B + 0.3, context, mask)
        assert (other - expected).abs().max() > 1e-3 * expected.abs().max()


def every_weight_gets_a_gradient(denoiser: Denoiser) -> None:
    """Also of blocks that are computed again."""
    for block in denoiser.repeated():
        checkpoint_block(block, "full")
    denoiser(*inputs()).square().sum().backward()
    assert [name for name, p in denoiser.named_parameters() if p.grad is None or not p.grad.any()] == []


@torch.no_grad()
def masked_text_does_not_count(denoiser: Denoiser) -> None:
    """Nor do the captions beside it."""
    x, t, context, mask = inputs()
    changed = context.clone()
    changed[0, -2:] = 100
    expected = denoiser(x, t, context, mask)
    torch.testing.assert_close(denoiser(x, t, changed, mask), expected)
    alone = denoiser(x[:1], t[:1], context[:1, :3], mask[:1, :3])
    torch.testing.assert_close(alone, expected[:1], rtol=1e-4, atol=1e-4)


def operations_are_those_that_run(config: DiffusersConfig) -> None:
    """Counted where attention is the products it is made of."""
    with torch.device("meta"):
        denoiser = built(config.model_copy(update={"fused": False}))
        x, t, context, _ = inputs(1, size=(4, 4, 4))
        with FlopCounterMode(display=False) as counter:
            out = denoiser(x, t, context, torch.ones(1, 5, dtype=torch.bool))
            forward = counter.get_total_flops()
            out.sum().backward()
    counted, backward = denoiser.flops((4, 4, 4), 5), counter.get_total_flops() - forward
    assert abs(counted.forward / forward - 1) < 0.01
    assert abs(counted.backward / backward - 1) < 0.01


@torch.no_grad()
def tokens_keep_their_positions(denoiser: Denoiser) -> None:
    """As parts of a sequence on other ranks: in any order, where text is no part of it."""
    x_BCTHW, t, context, mask = inputs()
    values_BLV = tokens(x_BCTHW, denoiser.patch)
    order_L = torch.randperm(values_BLV.shape[1], generator=torch.Generator().manual_seed(0))
    layout = TokenLayout(local=order_L, self_attend=Dense(None))
    grid = denoiser.grid(x_BCTHW.shape[2:])
    parts_BLV = denoiser.denoise(values_BLV[:, order_L], t, context, mask, [grid], layout)
    whole_BLV = tokens(denoiser(x_BCTHW, t, context, mask), denoiser.patch)
    torch.testing.assert_close(parts_BLV, whole_BLV[:, order_L], rtol=1e-4, atol=1e-4)


class FiveFrames(ClipStream):
    """Clips of 5 frames alone."""

    def microbatch(self, step, slot=0):
        return replace(super().microbatch(2 * step, slot), step=step)


def run_config(folder: Path, config: DiffusersConfig, steps: int = 12, **update) -> TrainConfig:
    """A run of a published transformer and the VAE beside it, on hashed text."""
    text = {"kind": "hashed", "width": TEXT, "max_text_tokens": 4}
    tokenizer = {"kind": "diffusers", "name": str(folder)}
    update = {"model": config, "tokenizer": tokenizer, "text": text} | update
    return TrainConfig.model_validate(tiny_config(steps, lr=5e-3).model_dump() | update)


def trains_samples_and_goes_back(run: TrainConfig, out: Path, theirs: type, time_unit=1000.0) -> None:
    """A run learns, makes a video, and exports weights that diffusers' own class loads, of the same answers."""
    result = Trainer(run, FiveFrames(), out / "run").run()
    assert result.last_loss < result.first_loss
    trained = load_trained(str(out / "run"), torch.device("cpu"))
    video = generate(
        trained.bundle, run.losses, SampleConfig(frames=5, height=16, width=16, steps=2), ["a wave"]
    )
    assert video.shape == (1, 3, 5, 16, 16)
    export(trained, out / "exported")
    model = theirs.from_pretrained(out / "exported", use_safetensors=True)
    x, t, context, mask = inputs()
    with torch.no_grad():
        expected = trained.bundle.dit(x, t, context, mask)
        answer = model(x, time_unit * t, filled(context, mask), return_dict=False)[0]
        begun = Bundle(run).dit(x, t, context, mask)
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    assert (answer - begun).abs().max() > 1e-3
