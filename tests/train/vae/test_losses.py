import math

import pytest
import torch
from safetensors.torch import save_file
from torch.distributions import Normal, kl_divergence

from reelweave.loader.errors import UsageError
from reelweave.train.config.vae import GanConfig, LpipsConfig
from reelweave.train.vae.accumulator import Accumulator
from reelweave.train.vae.discriminator import PatchDiscriminator
from reelweave.train.vae.gan_term import GanTerm
from reelweave.train.vae.losses.gan import adaptive_weight, gradient_at, lecam, r1, to_fool, to_tell_apart
from reelweave.train.vae.losses.perceptual import Perceptual
from reelweave.train.vae.losses.terms import absolute_error, kl_to_standard_normal, squared_error
from reelweave.train.vae.network import Posterior
from reelweave.train.vae.reconstruction import Reconstruction
from tests.thorough import thorough


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_pixels_count_equally_in_each_sample():
    made, video = drawn(2, 3, 2, 4, 4), drawn(2, 3, 2, 4, 4, seed=1)
    for number in range(2):
        difference = made[number] - video[number]
        assert squared_error(made, video)[number] == pytest.approx(float((difference**2).mean()))
        assert absolute_error(made, video)[number] == pytest.approx(float(difference.abs().mean()))


def test_kl_is_that_of_the_distributions():
    mean, log_variance = drawn(2, 4, 2, 3, 3), drawn(2, 4, 2, 3, 3, seed=1)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).flatten(1)
    torch.testing.assert_close(kl_to_standard_normal(mean, log_variance, "element"), expected.mean(dim=1))
    torch.testing.assert_close(kl_to_standard_normal(mean, log_variance, "sample"), expected.sum(dim=1))
    nothing = torch.zeros(1, 4, 1, 2, 2)
    assert kl_to_standard_normal(nothing, nothing, "sample") == 0


def test_verdicts_cost_what_the_papers_say():
    real, made = torch.tensor([[2.0, 0.5]]), torch.tensor([[-2.0, 1.0]])
    assert to_tell_apart(real, made, "hinge").item() == pytest.approx((0 + 0.5) / 4 + (0 + 2) / 4)
    assert to_fool(made, "hinge").item() == pytest.approx(0.5)
    as_classes = torch.nn.functional.binary_cross_entropy_with_logits
    both = as_classes(real, torch.ones(1, 2)) + as_classes(made, torch.zeros(1, 2))
    assert to_tell_apart(real, made, "vanilla").item() == pytest.approx(both.item() / 2)
    assert to_fool(made, "vanilla").item() == pytest.approx(as_classes(made, torch.ones(1, 2)).item())
    nothing = torch.zeros(1, 2)
    assert to_tell_apart(nothing, nothing, "hinge").item() == 1
    assert to_tell_apart(nothing, nothing, "vanilla").item() == pytest.approx(math.log(2))
    assert lecam(real, made, torch.tensor([1.0, -1.0])).item() == pytest.approx(
        ((3**2 + 3**2) + (1.5**2 + 0**2)) / 2
    )


def test_r1_of_a_linear_verdict_is_half_its_squared_slope():
    video, slope = drawn(2, 3, 1, 2, 2).requires_grad_(), drawn(3, 1, 2, 2, seed=1)
    verdicts = (video * slope).flatten(1).sum(dim=1, keepdim=True)
    assert r1(verdicts, video).tolist() == pytest.approx([float(slope.square().sum()) / 2] * 2)


def test_the_adaptive_weight_is_the_ratio_of_gradients_at_the_layer():
    layer = torch.tensor([1.0, 2.0], requires_grad=True)
    pulled, pushed = 3 * layer.sum(), (layer * torch.tensor([0.0, 0.5])).sum()
    ratio = adaptive_weight(gradient_at(pulled, layer), gradient_at(pushed, layer))
    assert ratio.item() == pytest.approx(math.sqrt(18) / 0.5, rel=1e-5)
    assert adaptive_weight(torch.ones(2), torch.zeros(2)).item() == 1e4
    assert layer.grad is None


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_the_discriminator_judges_patches_of_pictures_and_clips(frames: int):
    discriminator = PatchDiscriminator(8, 2)
    video = drawn(2, 3, frames, GanConfig(layers=2).least_px, 16)
    verdicts = discriminator(video)
    assert verdicts.shape[0] == 2
    assert verdicts.shape[1] >= 1
    torch.testing.assert_close(discriminator(video[1:]), verdicts[1:])  # of one clip, whatever lies beside it
    reach = torch.autograd.grad(discriminator(video.requires_grad_())[0].sum(), video)[0][0]
    assert (reach.abs().sum(dim=(0, 2, 3)) > 0).all()  # no frame is passed over


def test_each_side_teaches_itself_alone():
    gan_term = GanTerm(GanConfig(channels=8, layers=1, lecam=0.1, r1=0.1), 0, torch.device("cpu"))
    gan_term.trainable.begin(1e-3)
    video, made = drawn(2, 3, 2, 8, 8), drawn(2, 3, 2, 8, 8, seed=1).requires_grad_()
    gan_term.generator_loss(made).sum().backward()
    assert made.grad is not None
    assert all(not weight.grad.any() for weight in gan_term.trainable.weights.values())
    made.grad = None
    found = Reconstruction(video, made, Posterior(torch.zeros(2, 1, 1, 1, 1), None))
    accumulator = Accumulator()
    gan_term.discriminator_loss(1.0, found, accumulator).backward()
    assert made.grad is None
    assert all(weight.grad.any() for weight in gan_term.trainable.weights.values())


@pytest.fixture(scope="module")
def backbone():
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.squeezenet1_1(weights=None).state_dict()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_lpips_is_that_of_torchmetrics_with_the_weights_of_the_file(tmp_path, backbone, suffix):
    from torchmetrics.functional.image.lpips import _NoTrainLpips

    path = tmp_path / f"squeezenet{suffix}"
    torch.save(backbone, path) if suffix == ".pth" else save_file(backbone, path)
    found = Perceptual(LpipsConfig(network="squeeze", backbone=path))
    reference = _NoTrainLpips(net="squeeze", pnet_rand=True)
    for slice_ in reference.net.slices:
        for number, layer in slice_.named_children():
            own = {
                name.removeprefix(f"features.{number}."): weight
                for name, weight in backbone.items()
                if name.startswith(f"features.{number}.")
            }
            layer.load_state_dict(own)
    made, video = drawn(2, 3, 3, 20, 24).clamp(-1, 1), drawn(2, 3, 3, 20, 24, seed=1).clamp(-1, 1)
    expected = torch.stack([reference(made[:, :, t], video[:, :, t]).reshape(-1) for t in range(3)], dim=1)
    torch.testing.assert_close(found(made, video), expected)
    assert found(video, video).abs().max() == 0
    assert not any(weight.requires_grad for weight in found.parameters())
    made.requires_grad_()
    found(made, video).sum().backward()
    assert made.grad.any()


@thorough
def test_a_backbone_that_is_not_there_or_another_one_is_refused(tmp_path, backbone):
    with pytest.raises(UsageError, match=r"losses\.lpips\.backbone=.*torchvision's vgg16 weights"):
        Perceptual(LpipsConfig(backbone=tmp_path / "vgg16.pth"))
    torch.save(backbone, tmp_path / "squeeze.pth")
    with pytest.raises(UsageError, match="does not hold the weights of torchvision's alexnet"):
        Perceptual(LpipsConfig(network="alex", backbone=tmp_path / "squeeze.pth"))
    (tmp_path / "code.pth").write_bytes(b"\x80\x04cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(UsageError, match="could not be read"):
        Perceptual(LpipsConfig(network="squeeze", backbone=tmp_path / "code.pth"))
