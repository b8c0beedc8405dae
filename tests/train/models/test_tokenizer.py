import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.latents.identity import tokenizer_identity
from reelweave.train.models.encoders.tokenizer import PatchTransform, natural_deviations


def tokenizer(frames: int = 4, height: int = 8, width: int = 4, **keys) -> PatchTransform:
    return PatchTransform(PatchTransformConfig(frames=frames, height=height, width=width, **keys))


def video(batch: int, frames: int, height: int = 16, width: int = 24) -> torch.Tensor:
    return torch.rand(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize(("frames", "batch"), [(1, 1), (5, 3), (9, 2), (17, 1)])
def test_decode_inverts_encode(frames, batch):
    x = video(batch, frames)
    torch.testing.assert_close(tokenizer().decode(tokenizer().encode(x)), x, atol=1e-5, rtol=0)


def test_normalized_coefficients_are_scaled_and_lose_nothing():
    x, normalized = video(2, 9), tokenizer(normalized=True)
    torch.testing.assert_close(normalized.decode(normalized.encode(x)), x, atol=1e-5, rtol=0)
    scale_C = natural_deviations((4, 8, 4)).float().repeat_interleave(3)
    assert (scale_C[3:] < scale_C[0] / 4).all()
    scaled_BCTHW = normalized.encode(x) * scale_C[:, None, None, None]
    torch.testing.assert_close(scaled_BCTHW, tokenizer().encode(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("normalized", [False, True])
def test_kept_coefficients_are_those_of_low_frequency(normalized):
    keys = {"height": 8, "width": 8, "normalized": normalized}
    few, fewer = tokenizer(kept=8, **keys), tokenizer(kept=3, **keys)
    x = video(1, 9)
    assert few.channels == 24
    assert few.encode(x).shape == (1, 24, 3, 2, 3)
    once = few.decode(few.encode(x))
    torch.testing.assert_close(few.decode(few.encode(once)), once, atol=1e-5, rtol=0)
    assert (fewer.decode(fewer.encode(x)) - x).norm() > (once - x).norm()
    rows = torch.cos(torch.pi / 8 * (torch.arange(16) % 8 + 0.5))  # half a wave in each patch
    ramp = rows[:, None].expand(1, 3, 9, 16, 24) * torch.tensor([0.2, -0.5, 0.9])[:, None, None, None]
    torch.testing.assert_close(fewer.decode(fewer.encode(ramp)), ramp, atol=1e-5, rtol=0)


def test_channels_of_natural_footage_have_a_variance_near_one():
    """Amplitudes that fall as 1 / frequency, as in natural pictures, about a mean as of films."""
    torch.manual_seed(0)
    along = [torch.fft.fftfreq(size, dtype=torch.float64) for size in (64, 96)]
    distance = (along[0][:, None] ** 2 + along[1] ** 2).sqrt()
    noise = torch.fft.fft2(torch.randn(8, 3, 64, 96, dtype=torch.float64))
    picture_BCHW = torch.fft.ifft2(noise / distance.clamp(min=1 / 96)).real
    x = 0.6 * picture_BCHW / picture_BCHW.std()
    kept = tokenizer(height=8, width=8, kept=8, normalized=True)
    deviations = kept.encode(x.float()[:, :, None]).std(dim=(0, 2, 3, 4))
    assert (deviations[:3] > 0.5).all()
    assert (deviations < 2).all()


def test_more_coefficients_than_there_are_cannot_be_kept():
    with pytest.raises(ValueError, match=r"kept \(129\) must be at most the 128 values"):
        tokenizer(kept=129)


def test_latents_of_before_these_keys_are_those_of_the_default():
    assert tokenizer_identity(PatchTransformConfig()) == {
        "kind": "patch",
        "frames": 2,
        "height": 4,
        "width": 4,
    }
    assert tokenizer_identity(PatchTransformConfig(kept=5))["kept"] == 5
    assert tokenizer_identity(PatchTransformConfig(normalized=True))["normalized"] is True


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_a_patch_may_have_any_size(frames):
    transform = tokenizer(frames=frames, height=2, width=3)
    x = video(2, 1 + 2 * frames)
    torch.testing.assert_close(transform.decode(transform.encode(x)), x, atol=1e-5, rtol=0)


def test_latents_have_the_size_the_compression_says():
    transform = tokenizer()
    assert transform.compression == (4, 8, 4)
    assert transform.encode(video(2, 9)).shape == (2, transform.channels, 3, 2, 6)


def test_encode_keeps_distances_of_the_video_with_its_first_frame_held():
    x, y = video(1, 9), video(2, 9)[1:]
    held = torch.cat([(x - y)[:, :, :1].repeat(1, 1, 3, 1, 1), x - y], dim=2)
    distance = (tokenizer().encode(x) - tokenizer().encode(y)).norm()
    torch.testing.assert_close(distance, held.norm(), rtol=1e-5, atol=0)


def test_encode_is_linear():
    x, y = video(1, 5), video(2, 5)[1:]
    both = tokenizer().encode(0.25 * x - 0.5 * y)
    torch.testing.assert_close(both, 0.25 * tokenizer().encode(x) - 0.5 * tokenizer().encode(y))


def test_a_latent_frame_does_not_depend_on_later_frames():
    x = video(1, 9)
    changed = x.clone()
    changed[:, :, 5:] = 0
    assert torch.equal(tokenizer().encode(x)[:, :, :2], tokenizer().encode(changed)[:, :, :2])


def test_a_still_has_its_energy_in_the_slowest_channels():
    still = video(1, 1).repeat(1, 1, 5, 1, 1)
    latents = tokenizer().encode(still).reshape(4, -1)  # frequencies in time come first
    assert latents[1:].abs().max() < 1e-5 < latents[0].abs().max()


def test_bytes_are_taken_as_minus_one_to_one():
    bytes_ = (video(1, 5) * 127.5 + 127.5).round().to(torch.uint8)
    decoded = tokenizer().decode(tokenizer().encode(bytes_))
    torch.testing.assert_close(decoded, bytes_.float() / 127.5 - 1, atol=1e-5, rtol=0)


def test_a_frame_count_that_does_not_fit_is_refused_with_the_counts_that_do():
    with pytest.raises(UsageError, match=r"8 frames.*5 or 9"):
        tokenizer().encode(video(1, 8))


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="12x24"):
        tokenizer().encode(video(1, 5, height=12))
