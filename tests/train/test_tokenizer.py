import pytest
import torch

from loader.errors import UsageError
from train.config.tokenizer import PatchTransformConfig
from train.models.encoders.tokenizer import PatchTransform


def tokenizer(frames: int = 4, height: int = 8, width: int = 4) -> PatchTransform:
    return PatchTransform(PatchTransformConfig(frames=frames, height=height, width=width))


def video(batch: int, frames: int, height: int = 16, width: int = 24) -> torch.Tensor:
    return torch.rand(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize(("frames", "batch"), [(1, 1), (5, 3), (9, 2), (17, 1)])
def test_decode_inverts_encode(frames, batch):
    x = video(batch, frames)
    torch.testing.assert_close(tokenizer().decode(tokenizer().encode(x)), x, atol=1e-5, rtol=0)


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
