"""The arithmetic and indexing of the kernels, run on the processor against fp64."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.train.emulated import CSRC, TORCH_DTYPE, Emulated, Problem, build, cuda_headers
from train.kernels.launch import Dtype

# Half a unit in the last place of the type, and room for fp32 sums.
ROUNDING: dict[Dtype, float] = {"f32": 2e-6, "bf16": 2**-8, "f16": 2**-11}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    cuda_headers()
    into: Path = tmp_path_factory.mktemp("emulated")
    return Emulated(
        {
            "layer_norm_modulate": build(CSRC / "layer_norm_modulate.cu", into),
            "gate_residual_norm_modulate": build(CSRC / "gate_residual_norm_modulate.cu", into),
        },
        build(CSRC / "reduce.cu", into),
    )


def problem(
    rows: int,
    dim: int,
    groups: int = 1,
    x: Dtype = "bf16",
    modulation: Dtype = "f32",
    affine: bool = False,
    gated: bool = False,
    **kwargs: object,
) -> Problem:
    random = torch.Generator().manual_seed(rows * dim + groups)

    def normal(*shape: int, dtype: Dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(TORCH_DTYPE[dtype])

    # Strided, as the six chunks of one projection are.
    scale_GD, shift_GD, gate_GD = normal(groups, 3 * dim, dtype=modulation).chunk(3, dim=1)
    return Problem(
        x_ND=normal(rows, dim, dtype=x) + 2,
        scale_GD=scale_GD,
        shift_GD=shift_GD,
        weight_D=normal(dim, dtype=modulation) if affine else None,
        bias_D=normal(dim, dtype=modulation) if affine else None,
        branch_ND=normal(rows, 2 * dim, dtype=x)[:, dim:] if gated else None,
        gate_GD=gate_GD if gated else None,
        **kwargs,
    )


def doubled(case: Problem) -> Problem:
    """The same numbers as fp64 leaves, so that the reference's gradients are not rounded."""
    tensors = {
        field.name: getattr(case, field.name).double().requires_grad_()
        for field in fields(case)
        if isinstance(getattr(case, field.name), torch.Tensor)
    }
    return replace(case, **tensors)


def check(emulated: Emulated, case: Problem) -> None:
    x, _ = case.names
    random = torch.Generator().manual_seed(7)
    dy_ND, dh_ND = (torch.randn(case.x_ND.shape, generator=random).to(case.x_ND.dtype) for _ in range(2))
    gated = case.branch_ND is not None
    h_ND, y_ND, _, _ = emulated.forward(case)
    exact = doubled(case)
    wanted_h_ND, wanted_y_ND = exact.reference(h_ND)
    close(h_ND, wanted_h_ND, ROUNDING[x])
    close(y_ND, wanted_y_ND, ROUNDING[x])
    loss = (wanted_y_ND * dy_ND.double()).sum() + (wanted_h_ND * dh_ND.double()).sum() * gated
    wanted = torch.autograd.grad(loss, exact.inputs())
    for got, expected in zip(emulated.backward(case, dy_ND, dh_ND if gated else None), wanted, strict=True):
        close(got, expected, ROUNDING[NAMES[got.dtype]])


NAMES = {dtype: name for name, dtype in TORCH_DTYPE.items()}


def close(got: torch.Tensor, wanted: torch.Tensor, rounding: float) -> None:
    if not wanted.numel():
        return
    wanted = wanted.detach().double()
    room = rounding * wanted.abs() + 4e-6 * wanted.abs().max()
    worst = ((got.detach().double() - wanted).abs() - room).max().item()
    assert worst <= 0, f"off by {worst} beyond rounding"


@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
@pytest.mark.parametrize("rms", [False, True], ids=["ln", "rms"])
@pytest.mark.parametrize(("rows", "dim", "groups"), [(1, 760, 1), (37, 128, 1), (12, 1536, 2), (6, 3072, 3)])
def test_registers_agree_with_fp64(
    emulated: Emulated, rows: int, dim: int, groups: int, rms: bool, gated: bool
) -> None:
    check(emulated, problem(rows, dim, groups, rms=rms, gated=gated, affine=rows == 12))
