"""The errors that equality tests are judged by: noise does not count, mistakes do."""

import pytest
import torch

from tests.train.comparison import relative_errors

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def pair(dtype):
    torch.manual_seed(0)
    exact = {"large": torch.randn(50, dtype=dtype), "small": 1e-3 * torch.randn(50, dtype=dtype)}
    return {name: tensor.clone() for name, tensor in exact.items()}, exact


@DTYPES
def test_other_noise_in_place_of_a_zero_gradient_is_no_error(dtype):
    found, exact = pair(dtype)
    exact["zero"], found["zero"] = (torch.finfo(dtype).eps * torch.randn(50, dtype=dtype) for _ in range(2))
    assert relative_errors(found, exact) == {"large": 0, "small": 0, "zero": 0}
    exact["zero"] = torch.zeros(50, dtype=dtype)
    assert relative_errors(found, exact)["zero"] == 0


@DTYPES
@pytest.mark.parametrize("name", ["large", "small"])
def test_a_wrong_divisor_is_an_error_of_its_size(dtype, name):
    found, exact = pair(dtype)
    found[name] /= 2
    errors = relative_errors(found, exact)
    assert errors.pop(name) == pytest.approx(0.5, rel=0.02)
    assert set(errors.values()) == {0}


@DTYPES
def test_what_should_be_zero_and_is_not_is_an_error(dtype):
    found, exact = pair(dtype)
    exact["zero"], found["zero"] = torch.zeros(50, dtype=dtype), torch.full((50,), 1e-3, dtype=dtype)
    assert relative_errors(found, exact)["zero"] > 1
    found["zero"][0] = torch.nan
    assert not relative_errors(found, exact)["zero"] <= 1
