"""AdamW with its moments in bfloat16 or 8 bits, beside AdamW with float32."""

import math

import pytest
import torch
from torch import nn

from reelweave.train.config.optimizer import OptimizerConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.step import adamw
from reelweave.train.step.moments import Bfloat16, EightBits, dynamic_map
from reelweave.train.step.optimizer import build_optimizer, state_tensors

COMPACT = ("bfloat16", "8bit")


def weights_of() -> dict[str, nn.Parameter]:
    """Return a matrix whose rows are no multiple of a block, and a vector."""
    return {"matrix": nn.Parameter(torch.zeros(16, 300)), "vector": nn.Parameter(torch.zeros(16))}


def trained(moments: str, steps: int) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    """Return weights behind noisy steps: gradients of a row span three decades, and shrink to a fifth halfway."""
    weights, drawn = weights_of(), torch.Generator().manual_seed(1)
    config = OptimizerConfig(lr=1e-2, betas=(0.9, 0.999), moments=moments)
    optimizer = build_optimizer(config, weights, {"matrix"})
    for step in range(steps):
        for weight in weights.values():
            noise = torch.randn(weight.shape, generator=drawn) * (1.0 if step < steps // 2 else 0.2)
            weight.grad.copy_((0.1 + noise) * torch.logspace(-3, 0, weight.shape[-1]))
        optimizer.step()
    return weights, optimizer


@pytest.mark.parametrize(("moments", "bound"), [("bfloat16", 0.02), ("8bit", 0.15)])
def test_weights_go_where_float32_takes_them(moments: str, bound: float) -> None:
    exact, found = trained("float32", 300)[0], trained(moments, 300)[0]
    for name, weight in exact.items():
        away = (found[name] - weight).norm() / weight.norm()
        assert away < (bound if moments == "bfloat16" or name == "matrix" else 1e-5), name


def test_a_second_moment_that_moves_by_less_than_a_step_of_bfloat16_arrives() -> None:
    moments, weight = Bfloat16(), torch.zeros(64, 256)
    stored, exact = moments.zeros(weight), torch.linspace(0.5, 1.0, 256).expand(64, 256).clone()
    moments.write_(stored, exact, 0)
    for step in range(1, 1001):
        exact.lerp_(exact.new_full((), 0.25), 0.001)  # a thousandth a step, to the nearest it would stay
        moments.write_(
            stored, moments.read(stored).lerp(exact.new_full((), 0.25), 0.001), step * 2654435761 % 2**31
        )
    ratio = (moments.read(stored) / exact).mean(dim=0)
    assert ratio.mean().item() == pytest.approx(1, abs=0.01)
    assert ((ratio - 1).abs() < 0.1).all()


@pytest.mark.parametrize("signed", [True, False])
def test_eight_bits_round_to_the_nearest_of_their_map_whatever_the_size(signed: bool) -> None:
    moments, drawn = EightBits(signed, torch.device("cpu")), torch.Generator().manual_seed(2)
    values = 10 ** (torch.rand((40, 7, 50), generator=drawn) * 5 - 25)
    values *= torch.sign(torch.randn(values.shape, generator=drawn)) if signed else 1
    stored = moments.zeros(values)
    assert not moments.read(stored).any()
    moments.write_(stored, values, 3)
    known, read = torch.tensor(dynamic_map(signed)), moments.read(stored)
    rounded, exact = (x.flatten(1) if signed else x.flatten(1).sqrt() for x in (read, values))
    for block in (slice(0, 256), slice(256, 350)):
        scale = exact[:, block].abs().amax(dim=1, keepdim=True)
        wanted = known[(exact[:, block] / scale)[..., None].sub(known).abs().argmin(dim=-1)]
        assert torch.allclose(rounded[:, block] / scale, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("moments", "bytes_a_weight"), [("float32", 8), ("bfloat16", 4), ("8bit", 2.1)])
def test_states_take_what_they_should(moments: str, bytes_a_weight: float) -> None:
    weights = {"matrix": nn.Parameter(torch.zeros(8, 1024)), "vector": nn.Parameter(torch.zeros(8))}
    state = state_tensors(build_optimizer(OptimizerConfig(moments=moments), weights, weights), weights)
    of_matrix = sum(tensor.nbytes for name, tensor in state.items() if name.startswith("matrix.exp"))
    assert of_matrix <= bytes_a_weight * weights["matrix"].numel()
    assert all(tensor.shape[0] == 8 for name, tensor in state.items() if not name.endswith(".step"))


@pytest.mark.parametrize("moments", COMPACT)
def test_an_update_takes_no_more_than_it_says_and_no_bucket_more_than_the_largest_weight(
    moments: str, monkeypatch
) -> None:
    monkeypatch.setattr(adamw, "BUCKET_VALUES", 20_000)
    weights = {str(rows): nn.Parameter(torch.zeros(rows, 128)) for rows in (40, 60, 80, 300)}
    optimizer = build_optimizer(OptimizerConfig(moments=moments), weights, weights)
    with LiveMemory() as memory:
        optimizer.step()
        peak = memory.peak
    assert 0.3 * optimizer.update_bytes < peak <= optimizer.update_bytes
    assert optimizer.update_bytes == 32 * 300 * 128


@pytest.mark.parametrize("moments", COMPACT)
def test_a_copied_state_goes_on_to_the_bit_and_weights_without_gradient_rest(moments: str) -> None:
    weights, optimizer = trained(moments, 3)
    others = weights_of()
    again = build_optimizer(OptimizerConfig(lr=1e-2, betas=(0.9, 0.999), moments=moments), others, {"matrix"})
    copied = state_tensors(again, others)
    for name, tensor in state_tensors(optimizer, weights).items():
        copied[name].copy_(tensor)
    with torch.no_grad():
        for name, weight in weights.items():
            others[name].copy_(weight)
    rested = weights["vector"].clone()
    for of, own in ((weights, optimizer), (others, again)):
        of["matrix"].grad = torch.full_like(of["matrix"], 0.3)
        of["vector"].grad = None
        own.step()
    assert torch.equal(weights["matrix"], others["matrix"])
    assert torch.equal(rested, weights["vector"])
    assert [state_tensors(optimizer, weights)[f"{name}.step"].item() for name in weights] == [4, 3]


@pytest.mark.parametrize("moments", COMPACT)
def test_weights_in_float64_and_without_rows_are_updated(moments: str) -> None:
    weights = {
        "wide": nn.Parameter(torch.ones(2, 128, dtype=torch.float64)),
        "none": nn.Parameter(torch.zeros(0, 128)),
    }
    optimizer = build_optimizer(OptimizerConfig(lr=0.5, weight_decay=0, moments=moments), weights, ())
    weights["wide"].grad.fill_(math.pi)
    optimizer.step()
    # The first step is the learning rate, whatever the gradient.
    assert torch.allclose(weights["wide"], torch.full_like(weights["wide"], 0.5), rtol=1e-6)


def test_eight_bits_do_not_go_with_tensor_parallelism() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.moments 8bit has scales along rows"):
        TrainConfig(optimizer={"moments": "8bit"}, parallel={"tp": 2})
