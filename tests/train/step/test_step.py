"""What a step's gradient is divided by."""

from dataclasses import replace

import pytest
import torch

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.transfer import read
from reelweave.train.step.losses import losses
from reelweave.train.step.step_losses import StepLosses
from tests.train.clips import ClipStream, clip, tiny_config

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def bundle():
    bundle = Bundle(tiny_config())
    torch.manual_seed(0)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return bundle


IMAGE, VIDEO = Bucket(1, 16, 16), Bucket(9, 16, 16)  # 16 and 80 tokens


@pytest.fixture
def mixed():
    """Microbatches of both shapes: three images and two videos, and a filler."""
    made = []
    for slot, (bucket, size, weight) in enumerate(((IMAGE, 3, 0.6), (VIDEO, 2, 0.4), (VIDEO, 1, 0.0))):
        batch = ClipStream(sizes=(size,)).microbatch(slot)
        video = torch.stack([clip(slot + number, bucket) for number in range(size)])
        places = {"slot": slot, "slots": 3, "step_samples": 5}
        made.append(replace(batch, bucket=bucket, video_BCTHW=video, weight=weight, **places))
    return made


def gradient(bundle):
    return torch.cat([weight.grad.flatten() for weight in bundle.trained_weights().values()])


def stepped(bundle, batches, denominator):
    """Loss and gradient of a step."""
    bundle.zero_grad()
    step = StepLosses(denominator)
    for batch in batches:
        step.add(batch, losses(bundle, tiny_config(), batch, ALONE.device)).backward()
    loss, tokens = step.mean(step.sums(read(step.means)), 1, 1)
    step.normalise_(bundle.trained_weights().values())
    step.spread_(bundle.trained_weights().values())
    return loss, tokens, gradient(bundle)


def single(bundle, batch, number):
    """Loss, video tokens and gradient of one sample."""
    bundle.zero_grad()
    picked = {name: getattr(batch, name)[number : number + 1] for name in ("keys", "captions", "passes")}
    one = replace(batch, video_BCTHW=batch.video_BCTHW[number : number + 1], **picked)
    found = losses(bundle, tiny_config(), one, ALONE.device)
    found.each.sum().backward()
    return found.each.item(), found.video_tokens[0], gradient(bundle)


@pytest.mark.parametrize("denominator", ["step", "step_tokens"])
def test_a_step_is_the_mean_over_all_samples_or_over_all_tokens(bundle, mixed, denominator):
    each = [single(bundle, batch, number) for batch in mixed[:2] for number in range(len(batch.keys))]
    assert [tokens for _, tokens, _ in each] == [16] * 3 + [80] * 2
    shares = [tokens if denominator == "step_tokens" else 1 for _, tokens, _ in each]
    loss, _, found = stepped(bundle, mixed, denominator)
    assert loss == pytest.approx(
        sum(s * e[0] for s, e in zip(shares, each, strict=True)) / sum(shares), rel=1e-5
    )
    expected = sum(s * e[2] for s, e in zip(shares, each, strict=True)) / sum(shares)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_by_tokens_and_by_samples_differ_where_lengths_do(bundle, mixed):
    by_samples, by_tokens = (stepped(bundle, mixed, one)[2] for one in ("step", "step_tokens"))
    assert (by_samples - by_tokens).norm() > 0.01 * by_samples.norm()


def test_tokens_of_a_filler_do_not_count(bundle, mixed):
    assert stepped(bundle, mixed, "step")[1] == stepped(bundle, mixed[:2], "step")[1]


def test_a_step_that_is_not_whole_is_told(bundle, mixed):
    with pytest.raises(UsageError, match=r"add up to 0\.6"):
        stepped(bundle, mixed[:1], "step")


@pytest.mark.parametrize("denominator", ["step", "step_tokens"])
def test_a_sample_that_nothing_replaces_is_left_out_of_the_loss(bundle, mixed, denominator):
    images, videos, _ = mixed
    lost = replace(videos, weight=0.0, missing=0.4)
    loss, _, _ = stepped(bundle, [images, lost], denominator)
    assert loss == pytest.approx(stepped(bundle, [replace(images, weight=1.0)], denominator)[0], rel=1e-5)
    nothing, _, found = stepped(bundle, [replace(images, weight=0.0, missing=0.6), lost], denominator)
    assert nothing == 0
    assert not found.any()


@pytest.mark.parametrize("denominator", ["step", "epoch", "step_tokens"])
def test_what_a_stream_divides_by_is_not_divided_by_twice(bundle, mixed, denominator):
    by_step = [replace(batch, mean_samples=8.0) for batch in mixed]
    by_epoch = [replace(batch, weight=batch.weight * 5 / 8, denominator="epoch") for batch in by_step]
    loss, _, found = stepped(bundle, by_step, denominator)
    other, _, also = stepped(bundle, by_epoch, denominator)
    assert other == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(also, found, rtol=1e-5, atol=1e-8)
    plain = stepped(bundle, mixed, "step")[2]
    if denominator == "epoch":
        torch.testing.assert_close(found, plain * 5 / 8, rtol=1e-5, atol=1e-8)
