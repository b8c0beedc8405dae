"""From noise and a caption to pixels, with models whose right answer is known."""

import pytest
import torch

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.objectives.level import pose
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.generate import generate
from tests.train.clips import BUCKETS, clip, tiny_config

OBJECTIVES = {
    "flow": ({"name": "flow", "shift": {"kind": "constant", "factor": 3.0}}, lambda told: told),
    "edm": ({"name": "edm"}, lambda told: (4 * told).exp()),
    "ddpm, epsilon": ({"name": "ddpm"}, lambda told: (1000 * told).round()),
    "ddpm, v": (
        {"name": "ddpm", "prediction": "v", "zero_terminal_snr": True},
        lambda told: (1000 * told).round(),
    ),
}
SHAPE = BUCKETS[0]
SIZE = {"frames": SHAPE.frames, "height": SHAPE.height, "width": SHAPE.width}


class Knowing(Denoiser):
    """A model that predicts as if each caption belonged to one clip and the data held no others."""

    def __init__(self, bundle, time_of, clips):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.objective, self.time_of, self.grid = bundle.objective, time_of, bundle.dit.grid
        self.spreads = []
        self.clean = {caption: bundle.tokenizer.encode(video[None])[0] for caption, video in clips.items()}

    def forward(self, x_BCTHW, told_B, context_BMD, mask_BM):
        self.spreads.append(x_BCTHW.std().item())
        captions = [list(self.clean)[int(row[0, 0])] for row in context_BMD]
        clean = torch.stack([self.clean[caption] for caption in captions]).double()
        level = self.objective.level(self.time_of(told_B.double()))
        signal, noise, scale = (
            x[:, None, None, None, None] for x in (level.signal, level.noise, level.scale)
        )
        eps = (x_BCTHW.double() / scale - signal * clean) / noise
        return pose(level, clean, eps)[1].to(x_BCTHW.dtype)


class IntegerArray(torch.nn.Module):
    """A text encoder that gives each caption its number."""

    def __init__(self, captions):
        super().__init__()
        self.captions, self.width = list(captions), 1

    def forward(self, captions):
        numbers = [float(self.captions.index(caption)) for caption in captions]
        return torch.tensor(numbers)[:, None, None], torch.ones(len(numbers), 1, dtype=torch.bool)


def knowing(settings, time_of=None):
    config = TrainConfig.model_validate({**tiny_config().model_dump(), "objective": settings})
    clips = {"": clip(0, SHAPE), "up": clip(2, SHAPE), "down": clip(5, SHAPE)}
    bundle = Bundle(config)
    bundle.dit, bundle.text = Knowing(bundle, time_of or (lambda told: told), clips), IntegerArray(clips)
    return bundle, config, clips


@pytest.mark.parametrize("solver", ["euler", "heun", "res", "unipc", "few_step"])
@pytest.mark.parametrize(("settings", "time_of"), OBJECTIVES.values(), ids=OBJECTIVES)
def test_each_objective_arrives_at_the_clip_of_the_caption(settings, time_of, solver):
    bundle, config, clips = knowing(settings, time_of)
    asked = SampleConfig(**SIZE, steps=6, guidance=1.0, solver=solver)
    video = generate(bundle, config.losses, asked, ["up", "down"])
    assert video.dtype == torch.uint8
    assert bundle.dit.spreads[0] == pytest.approx(1, abs=0.1)  # noise alone, as the model gets it
    for found, caption in zip(video, ("up", "down"), strict=True):
        # The last step takes the clean latent that is seen; Heun's trials before it see the same.
        assert (found.int() - clips[caption].int()).abs().max() <= 1


def test_guidance_goes_from_no_caption_to_the_caption_and_beyond():
    bundle, config, clips = knowing({"name": "flow"})

    def latents(guidance):
        asked = SampleConfig(**SIZE, steps=3, guidance=guidance)
        return bundle.tokenizer.encode(generate(bundle, config.losses, asked, ["up"]).float() / 127.5 - 1)

    without, caption = (bundle.tokenizer.encode(clips[name][None]) for name in ("", "up"))
    for guidance in (0.0, 1.0, 0.5):
        expected = without + guidance * (caption - without)
        torch.testing.assert_close(latents(guidance), expected, rtol=0, atol=0.05)
    # Beyond, where pixels are at their bounds: no further than they go.
    beyond = bundle.tokenizer.decode(without + 1.5 * (caption - without)).clamp(-1, 1)
    torch.testing.assert_close(bundle.tokenizer.decode(latents(1.5)), beyond, rtol=0, atol=0.05)


def test_the_seed_decides_and_nothing_else():
    config = tiny_config()
    bundle = Bundle(config)
    torch.manual_seed(0)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)

    def video(seed, config=config):
        return generate(bundle, config.losses, SampleConfig(**SIZE, steps=3, seed=seed), ["a wave"])

    first = video(1)
    torch.manual_seed(99)
    assert torch.equal(video(1), first)
    assert not torch.equal(video(2), first)
    half = video(1, config.model_copy(update={"dtype": "bfloat16"}))
    assert not torch.equal(half, first)
    assert (half.float() - first.float()).abs().mean() < 3


def test_guiding_a_model_that_knows_no_empty_caption_is_refused():
    bundle, config, _ = knowing({"name": "flow", "caption_dropout": 0.0})
    with pytest.raises(UsageError, match="caption_dropout=0"):
        generate(bundle, config.losses, SampleConfig(**SIZE), ["up"])
    generate(bundle, config.losses, SampleConfig(**SIZE, guidance=1.0, steps=1), ["up"])


def test_guidance_leads_away_from_a_negative_prompt():
    bundle, config, clips = knowing({"name": "flow", "caption_dropout": 0.0})
    asked = SampleConfig(**SIZE, steps=2, guidance=0.5, negative_prompt="down")
    video = generate(bundle, config.losses, asked, ["up"])
    up, down = (bundle.tokenizer.encode(clips[name][None]) for name in ("up", "down"))
    middle = bundle.tokenizer.decode((up + down) / 2)
    torch.testing.assert_close(video.float() / 127.5 - 1, middle, rtol=0, atol=0.02)


def test_a_model_that_predicts_nonsense_is_told():
    config = tiny_config()
    bundle = Bundle(config)
    torch.nn.init.constant_(bundle.dit.head.bias, torch.nan)
    with pytest.raises(RunError, match="not finite"):
        generate(bundle, config.losses, SampleConfig(**SIZE, steps=1), ["up"])


@pytest.mark.parametrize("size", [(4, 16, 16), (5, 15, 16), (5, 18, 16)])
def test_a_size_that_does_not_fit_the_model_is_refused(size):
    config = tiny_config()
    config = config.model_copy(update={"model": config.model.model_copy(update={"patch": (1, 4, 4)})})
    frames, height, width = size
    with pytest.raises(UsageError, match=r"do not (fit|divide)"):
        generate(
            Bundle(config), config.losses, SampleConfig(frames=frames, height=height, width=width), ["up"]
        )
