"""Wan's image-to-video models and its two experts make the videos of their pipelines in diffusers, step by step."""

import json

import PIL.Image
import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.published.expert_pair import Experts, fit_together
from reelweave.train.sampling.cache.config import BlockCacheConfig
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.solvers.noise import starting_noise
from reelweave.train.sampling.trained.load import load_published
from tests.thorough import beyond, thorough
from tests.train.comparison import relative
from tests.train.models.wan_pipelines import FORMS, IMAGE, calls_of, configured, pipeline, publish
from tests.train.sampling import wan_ranks

CPU = torch.device("cpu")
SIZE = {"frames": 9, "height": 32, "width": 48}
CAPTION = "a cat"


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {form: publish(tmp_path_factory.mktemp("wan"), form) for form in FORMS}


def picture():
    draw = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (1, 3, 1, 32, 48), generator=draw, dtype=torch.uint8)


def sampler(trained, **asked):
    layout = VideoLayout.alone(trained.bundle, trained.experts)
    return VideoSampler(trained.bundle, trained.config.losses, SampleConfig(**SIZE, **asked), layout)


def trained_of(folder, form, **update):
    return with_experts(load_published(configured(folder, form, **update), CPU), CPU)


EVEN, PUBLISHED = {"solver": "euler"}, {"solver": "unipc", "timesteps": "published"}


@pytest.mark.parametrize(
    ("form", "guidance", "solver"),
    [
        *beyond(0, [("2.2 A14B T2V", (4.0, 3.0), EVEN), ("2.2 A14B T2V", (1.0, 1.0), EVEN)]),
        ("2.2 A14B I2V", (3.5, 2.0), EVEN),
        ("2.2 TI2V 5B", (5.0, None), EVEN),
        ("2.2 A14B T2V", (4.0, 3.0), PUBLISHED),
        *beyond(0, [("2.1 T2V", (5.0, None), EVEN), ("2.1 T2V", (5.0, None), PUBLISHED)]),
        *beyond(0, [("2.2 A14B I2V", (3.5, 2.0), PUBLISHED), ("2.2 TI2V 5B", (5.0, None), PUBLISHED)]),
    ],
)
def test_every_step_is_that_of_the_pipeline(folders, form, guidance, solver):
    """At equal times with Euler, and as it is published, with UniPC at times of its own."""
    trained = trained_of(folders[form], form)
    own = sampler(trained, steps=4, guidance=guidance[0], guidance_2=guidance[1], **solver)
    passes = own.encode([CAPTION])
    pair = trained.experts
    dits = [trained.bundle.dit] if pair is None else [pair.high_noise, pair.low_noise]
    calls = calls_of([dit.model for dit in dits])
    given = own.encode_frames(picture()) if form in IMAGE else None
    found = own.denoise(passes, [5], lambda: None, given)

    pipe = pipeline(folders[form], form, is_published=solver is PUBLISHED)
    theirs = calls_of([model for model in (pipe.transformer, pipe.transformer_2) if model is not None])
    embeds = [dits[0].fill_context(*one) for one in passes]
    more = {"negative_prompt_embeds": embeds[1]} if len(embeds) > 1 else {}
    if form in IMAGE:
        more["image"] = PIL.Image.fromarray(picture()[0, :, 0].permute(1, 2, 0).numpy())
    if pair is not None:
        more["guidance_scale_2"] = guidance[1]
    expected = pipe(
        prompt_embeds=embeds[0],
        num_frames=SIZE["frames"],
        height=SIZE["height"],
        width=SIZE["width"],
        num_inference_steps=4,
        guidance_scale=guidance[0],
        latents=starting_noise([5], found.shape[1:]),
        output_type="latent",
        **more,
    ).frames
    assert [number for number, *_ in calls] == [number for number, *_ in theirs]
    # t = 0.75 is at the boundary, and so the first expert's; UniPC's 0.75037 is cut to it.
    assert [number for number, *_ in calls[:: len(passes)]] == ([0] * 4 if pair is None else [0, 0, 0, 1])
    for (_, x, time), (_, their_x, their_time) in zip(calls, theirs, strict=True):
        assert relative(x, their_x) < 1e-5
        assert relative(time, their_time) < 1e-6
    assert relative(found, expected) < 1e-5


def test_given_frames_stay_through_every_solver(folders):
    trained = trained_of(folders["2.2 TI2V 5B"], "2.2 TI2V 5B")
    for solver in ("heun", "unipc"):
        own = sampler(trained, steps=3, guidance=3.0, solver=solver)
        given = own.encode_frames(picture())
        found = own.denoise(own.encode([CAPTION]), [5], lambda: None, given)
        assert relative(found[:, :, :1], given) < 1e-5, solver
    # The same weights make videos from text, with all tokens at one time.
    own = sampler(trained, steps=2, guidance=3.0)
    calls = calls_of([trained.bundle.dit.model])
    own.denoise(own.encode([CAPTION]), [5])
    assert all(len(time.unique()) == 1 for _, _, time in calls)


@thorough
def test_every_exact_layout_makes_the_video_of_one_process(folders, ranks, tmp_path):
    (tmp_path / "folders.json").write_text(json.dumps({form: str(path) for form, path in folders.items()}))
    ended = ranks.run(wan_ranks.compute, 4, str(tmp_path))
    assert ended.codes == [0] * 4, ended.errors
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == 3
        assert max(found.values()) < 1e-10, found


class Elsewhere(Denoiser):
    """A model that notes where it is moved; a second device is that of tensors without values."""

    def __init__(self, name, moves):
        super().__init__()
        self.weight, self.name, self.moves = torch.nn.Parameter(torch.zeros(4)), name, moves

    def to(self, device):
        self.moves.append((self.name, str(device)))
        return self.to_empty(device=device)


def test_a_device_too_small_for_both_holds_the_expert_that_predicts():
    moves = []
    models = [Elsewhere(name, moves) for name in ("high", "low")]
    assert fit_together(models, 65)
    assert not fit_together(models, 64)
    for together in (True, False):
        moves.clear()
        pair = Experts(
            *(model.to_empty(device="cpu") for model in models), 0.9, torch.device("meta"), together
        )
        for model in (models[0], models[0], models[1], models[0]):
            pair.bring(model)
            assert model in pair.present
            assert len(pair.present) == 1 or together
        swapped = [("high", "meta"), ("high", "cpu"), ("low", "meta"), ("low", "cpu"), ("high", "meta")]
        assert moves == ([("high", "meta"), ("low", "meta")] if together else swapped)


def test_options_of_other_models_are_refused(folders):
    plain = trained_of(folders["2.1 T2V"], "2.1 T2V")
    with pytest.raises(UsageError, match="guidance_2 is for a model with two experts"):
        sampler(plain, guidance_2=3.0)
    with pytest.raises(UsageError, match=r"trained with train\.first_frames"):
        sampler(plain).encode_frames(picture())
    with pytest.raises(UsageError, match="second expert do not belong"):
        with_experts(plain, CPU, checkpoint="runs/other")
    pair = trained_of(folders["2.2 A14B I2V"], "2.2 A14B I2V")
    own = sampler(pair, steps=1)
    with pytest.raises(UsageError, match="needs first frames: give some"):
        own.denoise(own.encode([CAPTION]), [0])
    with pytest.raises(UsageError, match="give fewer"):
        own.check_first_frames(5)
    with pytest.raises(UsageError, match="two experts: leave it out"):
        sampler(pair, cache=BlockCacheConfig())
    with pytest.raises(UsageError, match=r"one of two experts, for times 0\.75 to 1"):
        VideoSampler(pair.bundle, pair.config.losses, own.config, VideoLayout.alone(pair.bundle))
