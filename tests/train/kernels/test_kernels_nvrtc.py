"""The NVRTC provider from source to launch: compiled by NVRTC for sm_90, run by a driver that emulates the kernels."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import RunError
from reelweave.train.kernels.checks import check
from reelweave.train.kernels.checks.accuracy import BF16, F32
from reelweave.train.kernels.checks.check import Case
from reelweave.train.kernels.checks.check_qk import PairCase
from reelweave.train.kernels.cuda import host, nvrtc
from reelweave.train.kernels.cuda.driver import TorchLauncher
from reelweave.train.kernels.norm_modulate import reference as norm_modulate
from tests.thorough import thorough
from tests.train.kernels.emulated import cuda_headers

CPU = torch.device("cpu")
STREAM = 0x700000001234


@pytest.fixture(scope="module")
def cuda(emulated_kernels, tmp_path_factory):
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("stub_driver.cpp")
    flags = ("-std=c++17", "-O1", "-shared", "-fPIC", "-isystem", str(cuda_headers()))
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
    stub = ctypes.CDLL(str(library))
    for kernels in emulated_kernels.values():
        stub.stub_kernels_from(kernels._name.encode())
    return stub


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if lack := nvrtc.lacks():
        pytest.skip(lack)
    return tmp_path_factory.mktemp("cache")


def driver(cuda, folder, stream=STREAM):
    return TorchLauncher(
        cuda, lambda kernel, arch: nvrtc.binary(nvrtc.unit_of(kernel), arch, folder), lambda _: stream
    )


def everything(_x, _numerics):
    return True


CASES = (
    Case(False, "packed", 11, 136, affine=True),
    Case(True, "token", 5, 769, affine=True),
    # A ring above 48 KB, a smaller one of the same kernel, and the first again.
    Case(True, "sample", 1, 8192),
    Case(True, "sample", 1, 6144),
    Case(True, "sample", 2, 8192),
    Case(True, "sample", 2, 8200),
    # A ring of 48 KB to the byte, to which the static memory comes.
    Case(True, "sample", 1, 3072),
    PairCase((5, 5, 3, 2, 64), BF16, F32, across=True, turn="half"),
)


@pytest.mark.toolchain
def test_what_nvrtc_makes_is_found_launched_and_right(cuda, folder):
    kernels = host.kernels(driver(cuda, folder), everything)
    assert list(check.failures(kernels, CPU, CASES)) == []
    made = {path.name.split("-")[0]: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(made) == {
        "layer_norm_modulate_bf16_f32",
        "gate_residual_norm_modulate_bf16_f32",
        "qk_norm",
        "reduce",
    }
    assert list(check.failures(host.kernels(driver(cuda, folder), everything), CPU, CASES)) == []
    assert {path.name.split("-")[0]: path.stat().st_mtime_ns for path in folder.iterdir()} == made


@pytest.mark.toolchain
def test_what_the_driver_refuses_is_said(cuda, folder):
    case = Case(False, "sample", 3, 136)
    with pytest.raises(RunError, match="cuLaunchKernelEx fails: refused"):
        check.worst(host.kernels(driver(cuda, folder, stream=1), everything), CPU, case)
    with pytest.raises(RunError, match="symbol not found"):
        driver(cuda, folder)._function("reduce_f64", CPU)


@pytest.mark.toolchain
def test_a_call_amid_another_has_argument_blocks_of_its_own(cuda, folder):
    """As when a thread launches while another one is in the driver."""
    inside = []

    def stream(_device):
        if inside:
            inside.pop()()
        return STREAM

    binary = lambda kernel, arch: nvrtc.binary(nvrtc.unit_of(kernel), arch, folder)  # noqa: E731
    kernels = host.kernels(TorchLauncher(cuda, binary, stream), everything)
    row = torch.randn(1, 64)

    def both(seed):
        x = torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(seed), dtype=BF16)
        arguments = (x, row, row, None, None, None, 1e-6, False, "fp32")
        return kernels.norm_modulate(*arguments)[0], norm_modulate.forward(*arguments)[0]

    both(0)
    results = []
    inside.append(lambda: results.append(both(1)))
    results.append(both(2))
    assert len(results) == 2
    for found, expected in results:
        torch.testing.assert_close(found, expected)


@thorough
def test_the_unit_of_a_kernel_has_it():
    if lack := nvrtc.lacks():
        pytest.skip(lack)
    kernel = "gate_residual_norm_modulate_backward_token_f32_f32_e16_t512"
    cubin = nvrtc.compile_unit(nvrtc.unit_of(kernel), "sm_80")
    assert cubin.count(b"\0" + kernel.encode() + b"\0")


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, caplog):
    if lack := nvrtc.lacks():
        pytest.skip(lack)
    (tmp_path / "file").write_text("")
    unit = nvrtc.unit_of("reduce_f32")
    assert nvrtc.binary(unit, 90, tmp_path / "file" / "below").startswith(b"\x7fELF")
    assert "reduce cannot be kept in" in caplog.text


def test_a_gpu_newer_than_nvrtc_gets_ptx_for_its_driver():
    if lack := nvrtc.lacks():
        pytest.skip(lack)
    ptx = nvrtc.compile_unit(nvrtc.Unit("one", 'extern "C" __global__ void one() {}'), nvrtc.target(999))
    assert b".entry one" in ptx
    assert nvrtc.target(90) == "sm_90"


def test_what_nvrtc_refuses_is_said():
    if lack := nvrtc.lacks():
        pytest.skip(lack)
    with pytest.raises(RunError, match=r"NVRTC refuses broken for sm_90: .* error"):
        nvrtc.compile_unit(nvrtc.Unit("broken", "__global__ void broken() { return 1; }"), "sm_90")
