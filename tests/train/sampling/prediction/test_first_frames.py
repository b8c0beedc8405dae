"""Image to video: the given frames decide the video, in training and in sampling."""

import json

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.objectives.level import pose
from reelweave.train.sampling.cache.config import BlockCacheConfig
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.prediction.first_frames import check_given
from reelweave.train.sampling.prediction.guidance import image_weights
from reelweave.train.step.losses import losses
from tests.thorough import nightly, thorough
from tests.train.clips import BUCKETS, ClipStream, clip, tiny_config
from tests.train.sampling.prediction import first_frames_ranks
from tests.train.sampling.test_generate import IntegerArray

SHAPE = BUCKETS[0]
SIZE = {"frames": SHAPE.frames, "height": SHAPE.height, "width": SHAPE.width}
CAPTIONS = {"": 0, "up": 1}


def configured(**given):
    return TrainConfig.model_validate({**tiny_config().model_dump(), "first_frames": given})


def sampler(config, bundle, **asked):
    return VideoSampler(bundle, config.losses, SampleConfig(**SIZE, **asked), VideoLayout.alone(bundle))


class Additive(Denoiser):
    """A model whose clean latent is a sum: of the noise of nothing, what the caption adds and what the image adds."""

    condition_channels = 1

    def __init__(self, bundle):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.objective, self.grid, self.channels = (
            bundle.objective,
            bundle.dit.grid,
            bundle.tokenizer.channels,
        )

    def repeated(self):
        return []

    def forward(self, x_BCTHW, time_B, context_BMD, mask_BM):
        noisy, mask, given = x_BCTHW.split([self.channels, 1, self.channels], dim=1)
        assert bool((given[:, :, 1:] == 0).all()), "what is not given is zero"
        has_image = mask[:, :, 0, 0, 0].double()[:, :, None, None, None]
        text = context_BMD[:, :1, :1, None, None].double()
        clean = (1 + 10 * text + 100 * has_image).expand_as(noisy)
        level = self.objective.level(time_B.double())
        signal, noise = (x[:, None, None, None, None] for x in (level.signal, level.noise))
        return pose(level, clean, (noisy.double() - signal * clean) / noise)[1].to(x_BCTHW.dtype)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"guidance": 1.0}, 111),
        ({"guidance": 3.0}, 101 + 3 * 10),
        ({"guidance": 3.0, "image_guidance": 2.0}, 1 + 2 * 100 + 3 * 10),
        ({"guidance": 0.0, "image_guidance": 1.0}, 101),
    ],
)
def test_caption_and_image_have_a_guidance_of_their_own(asked, expected, batched):
    config = configured()
    bundle = Bundle(config)
    bundle.dit, bundle.text = Additive(bundle), IntegerArray(CAPTIONS)
    own = sampler(config, bundle, steps=2, batched=batched, **asked)
    latents = own.denoise(
        own.encode(["up"]), [0], lambda: None, own.encode_frames(clip(0, SHAPE)[None, :, :1])
    )
    assert latents.unique().tolist() == pytest.approx([expected], abs=0.01)


def test_weights_of_image_guidance_sum_to_one():
    assert sum(image_weights(7.5, 1.5)) == pytest.approx(1)


@nightly
def test_a_trained_model_goes_on_from_the_picture():
    """Two clips with one caption: only the first frame says which."""
    config = TrainConfig.model_validate(
        {**configured(dropout=0.0).model_dump(), "objective": {"name": "flow", "caption_dropout": 0.0}}
    )
    bundle = Bundle(config)
    optimizer = torch.optim.AdamW(bundle.trained_weights().values(), lr=3e-3, weight_decay=0)
    stream = ClipStream(samples=8)
    batch = stream.microbatch(0)
    videos = [clip(number, SHAPE) for number in (0, 4)]
    for step in range(150):
        same = type(batch)(
            **{name: getattr(batch, name) for name in batch.__dataclass_fields__}
            | {
                "keys": tuple(f"clip{number % 2}" for number in range(8)),
                "captions": ("a wave",) * 8,
                "passes": tuple(step * 4 + number // 2 for number in range(8)),
                "video_BCTHW": torch.stack(videos * 4),
            }
        )
        optimizer.zero_grad()
        losses(bundle, config, same, torch.device("cpu")).each.mean().backward()
        optimizer.step()
    own = sampler(config, bundle, steps=8, guidance=1.0)
    given = own.encode_frames(torch.stack([video[:, :1] for video in videos]))
    made = own.decode(own.denoise(own.encode(["a wave"] * 2), [5, 5], lambda: None, given)).float()
    errors = torch.tensor([[(one - video).square().mean() for video in videos] for one in made])
    # From the same noise and caption: without the picture both would be one video.
    assert bool((errors.diagonal() < 0.7 * errors.flip(1).diagonal()).all()), errors


@thorough
def test_every_exact_layout_makes_the_video_of_one_process(ranks, tmp_path):
    ended = ranks.run(first_frames_ranks.compute, 4, str(tmp_path))
    assert ended.codes == [0] * 4, ended.errors
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == 6
        assert max(found.values()) < 1e-10, found


def test_what_a_model_was_not_trained_for_is_refused():
    plain, given = tiny_config(), configured(dropout=0.0)
    first = clip(0, SHAPE)[None, :, :1]
    with pytest.raises(UsageError, match=r"train\.first_frames"):
        sampler(plain, Bundle(plain), guidance=1.0).encode_frames(first)
    own = sampler(given, Bundle(given), guidance=1.0, steps=1)
    with pytest.raises(UsageError, match="needs first frames"):
        own.denoise(own.encode(["up"]), [0])
    with pytest.raises(UsageError, match="do not begin"):
        own.encode_frames(first[..., :8])
    with pytest.raises(UsageError, match="give fewer"):
        own.encode_frames(clip(0, SHAPE)[None])
    guided = sampler(given, Bundle(given), guidance=2.0, image_guidance=2.0, steps=1)
    with pytest.raises(UsageError, match="dropout above 0"):
        guided.denoise(guided.encode(["up"]), [0], lambda: None, guided.encode_frames(first))
    with pytest.raises(UsageError, match="give fewer"):
        check_given(configured(max_latent_frames=3).first_frames, 2, 2)


def test_a_cache_of_the_blocks_counts_its_hits_and_forgets_the_video_before():
    config = TrainConfig.model_validate(
        {**tiny_config().model_dump(), "model": {"hidden": 24, "heads": 4, "layers": 2}}
    )
    bundle = Bundle(config)
    torch.manual_seed(0)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    plain = sampler(config, bundle, steps=6, guidance=2.0)
    passes = plain.encode(["up"])
    exact = plain.denoise(passes, [0])
    still = sampler(config, bundle, steps=6, guidance=2.0, cache=BlockCacheConfig(threshold=0))
    assert torch.equal(still.denoise(passes, [0]), exact)
    assert (still.cache.hits, still.cache.evaluations) == (0, 12)
    cached = sampler(config, bundle, steps=6, guidance=2.0, cache=BlockCacheConfig(threshold=100))
    first = cached.denoise(passes, [0])
    assert (cached.cache.hits, cached.cache.evaluations) == (10, 12)
    assert not torch.equal(first, exact)
    cached.denoise(passes, [1])
    assert torch.equal(cached.denoise(passes, [0]), first)
