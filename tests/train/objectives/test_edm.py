"""Karras et al. 2022, table 1 and appendix B.6, written out once more."""

import pytest
import torch

from reelweave.train.config.objective import EDMConfig
from reelweave.train.objectives.edm import EDM
from reelweave.train.objectives.level import pose, solve

SIGMAS = torch.logspace(-3, 2, 11, dtype=torch.float64)


@pytest.fixture(params=[0.5, 1.3])
def edm(request):
    return EDM(EDMConfig(sigma_data=request.param))


def table(edm):
    sigma, data = SIGMAS, edm.config.sigma_data
    c_skip = data**2 / (sigma**2 + data**2)
    c_out = sigma * data / (data**2 + sigma**2).sqrt()
    c_in = 1 / (sigma**2 + data**2).sqrt()
    weight = (sigma**2 + data**2) / (sigma * data) ** 2
    return c_skip, c_out, c_in, sigma.log() / 4, weight


def wide(x_B):
    return x_B[:, None, None, None, None]


def test_the_denoiser_is_the_papers(edm):
    c_skip, c_out, c_in, c_noise, _ = table(edm)
    level = edm.level(SIGMAS)
    torch.testing.assert_close(level.scale, c_in)
    torch.testing.assert_close(level.timestep_input, c_noise)
    noisy, output = torch.randn(2, len(SIGMAS), 2, 1, 3, 3, dtype=torch.float64)
    clean, noise = solve(level, noisy, output)
    denoised = wide(c_skip) * noisy + wide(c_out) * output
    torch.testing.assert_close(clean, denoised)
    torch.testing.assert_close(noise, (noisy - denoised) / wide(SIGMAS), rtol=1e-6, atol=1e-9)


def test_the_loss_is_the_papers_as_weight_times_c_out_squared_is_1(edm):
    c_skip, c_out, _, _, weight = table(edm)
    torch.testing.assert_close(weight * c_out**2, torch.ones_like(weight))
    clean, noise, output = torch.randn(3, len(SIGMAS), 2, 1, 3, 3, dtype=torch.float64)
    level = edm.level(SIGMAS)
    _, target = pose(level, clean, noise)
    noisy = clean + wide(SIGMAS) * noise
    denoised = wide(c_skip) * noisy + wide(c_out) * output
    ours = level.weight * (output - target).square().flatten(1).mean(dim=1)
    papers = weight * (denoised - clean).square().flatten(1).mean(dim=1)
    torch.testing.assert_close(ours, papers, rtol=1e-9, atol=0)


def test_inputs_and_targets_have_variance_1_at_every_level(edm):
    """Exactly: of independent latents of variance sigma_data^2 and noise of variance 1."""
    level, data = edm.level(SIGMAS), edm.config.sigma_data
    inputs = level.scale**2 * ((level.signal * data) ** 2 + level.noise**2)
    targets = (level.target_signal * data) ** 2 + level.target_noise**2
    torch.testing.assert_close(inputs, torch.ones_like(inputs))
    torch.testing.assert_close(targets, torch.ones_like(targets))


def test_sigma_is_log_normal():
    normals = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    edm = EDM(EDMConfig(p_mean=-0.4, p_std=1.0))
    logs = torch.stack([edm.time(normal, 1) for normal in normals]).log()
    assert abs(logs.mean() + 0.4) < 0.05
    assert abs(logs.std() - 1.0) < 0.05
