"""The host side in Python over emulated kernels, against float64."""

from dataclasses import replace

import pytest
import torch

from loader.errors import UsageError
from tests.train.emulated import EmulatedLauncher
from train.kernels import check, host
from train.kernels.check import BF16, F16, F32, Case

CPU = torch.device("cpu")
SMALL = [*check.cases([(9, 136), (5, 67)])]


def kernels_over(launcher):
    return host.kernels(launcher, lambda _x, _numerics: True)


@pytest.fixture(scope="module")
def launcher(emulated_kernels):
    return EmulatedLauncher(emulated_kernels)


@pytest.mark.parametrize("form", check.FORMS)
def test_every_form_type_and_layout_agrees_with_float64(launcher, form):
    wanted = [case for case in SMALL if case.form == form]
    assert list(check.failures(kernels_over(launcher), CPU, wanted)) == []


@pytest.mark.parametrize(
    "case",
    [
        Case(True, "packed", 2, 8200, F32, F32),
        Case(True, "sample", 1, 760, F16, F16, affine=True),
        Case(False, "frame", 37, 1128, BF16, BF16, affine=True, layout="sliced"),
    ],
    ids=str,
)
def test_odd_shapes(launcher, case):
    assert check.worst(kernels_over(launcher), CPU, case) <= 1


def test_a_ring_that_does_not_fit_takes_the_tiled_path(launcher):
    case = Case(True, "sample", 3, 256, F32, F32)
    assert check.worst(kernels_over(replace(launcher, limit=1 << 10)), CPU, case) <= 1


@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_any_number_of_blocks_gives_the_sums(launcher, blocks):
    kernels = kernels_over(replace(launcher, blocks=blocks))
    wanted = [Case(True, "packed", 23, 64, affine=True), Case(True, "packed", 23, 67, F32, F32)]
    assert list(check.failures(kernels, CPU, wanted)) == []


def test_the_check_sees_what_is_wrong(launcher):
    kernels = kernels_over(launcher)

    def off_by_a_bit(*arguments):
        y, mean, rstd = kernels.norm_modulate(*arguments)
        return y * (1 + 2**-6), mean, rstd

    def wrong_statistics(*arguments):
        y, mean, rstd = kernels.norm_modulate(*arguments)
        return y, mean + 0.01, rstd

    def swapped(*arguments):
        dx, dscale, dshift, *others = kernels.norm_modulate_backward(*arguments)
        return dx, dshift, dscale, *others

    count = iter(range(100))

    def different(*arguments):
        dx, *others = kernels.norm_modulate_backward(*arguments)
        return dx * (1 + 2**-7 * next(count)), *others

    case = [Case(False, "sample", 5, 64)]
    for broken in (
        replace(kernels, norm_modulate=off_by_a_bit),
        replace(kernels, norm_modulate=wrong_statistics),
        replace(kernels, norm_modulate_backward=swapped),
        replace(kernels, norm_modulate_backward=different),
    ):
        assert len(list(check.failures(broken, CPU, case))) == 1


def test_tensors_of_two_devices_are_refused(launcher):
    x, row = torch.zeros(1, 2, 8), torch.zeros(1, 8, device="meta")
    with pytest.raises(UsageError, match="one device"):
        kernels_over(launcher).norm_modulate(x, row, row, None, None, None, 1e-6, False, "fp32")
