"""The Triton kernels: interpreted against the definition, and compiled for GPUs that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
FP32_LIMIT, HALF_LIMIT = 20, 3

INTERPRETED = """
import json
import torch
from tests.train.kernel_cases import FORMS, case
from tests.train.test_kernels_ops import both, worst
from train.kernels.providers import kernels_for
from train.kernels.triton_provider import KERNELS

found = {}
for form in FORMS:
    shape = dict(form=form, L=9, D=72, frames=3)
    half, full = case(dtype=torch.bfloat16, rows_dtype=torch.float32, **shape), case(affine=True, **shape)
    assert kernels_for(full[0][0], "fp32") is KERNELS
    for op in ("plain", "gated"):
        found[f"{op} {form} bf16"] = worst(op, half) / torch.finfo(torch.bfloat16).eps
        for rms in (False, True):
            found[f"{op} {form} fp32 {rms}"] = worst(op, full, rms=rms) / torch.finfo(torch.float32).eps
for L, D in ((1, 760), (37, 40), (2, 1128)):
    found[f"{L} {D} fp32"] = worst("gated", case(L=L, D=D)) / torch.finfo(torch.float32).eps
first, second = (both("gated", case("packed", L=30, D=24))[0] for _ in range(2))
assert all(map(torch.equal, first, second))
print(json.dumps(found))
"""


def test_interpreted_kernels_are_as_near_as_their_rounding():
    environment = os.environ | {"TRITON_INTERPRET": "1", "REELWEAVE_KERNELS": "triton"}
    run = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    errors = json.loads(run.stdout)
    assert len(errors) == 4 * 2 * 3 + 3
    wrong = {
        name: units
        for name, units in errors.items()
        if units > (HALF_LIMIT if "bf16" in name else FP32_LIMIT)
    }
    assert wrong == {}


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("every", [False, True], ids=["bare", "everything"])
def test_kernels_compile_without_a_gpu(capability, every):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from train.kernels.triton_kernels import backward_kernel, forward_kernel

    for kernel in (forward_kernel, backward_kernel):
        constants = {name: every for name in kernel.arg_names if name.isupper()} | {"BLOCK": 2048}
        types = {name: kind_of(name) for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, types, constants)
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


def kind_of(name):
    known = {"eps": "fp32", "owner_N": "*i64", "ends": "*i32"}
    if name in known:
        return known[name]
    if name in ("width", "span") or name.endswith("stride"):
        return "i32"
    return "*bf16" if name.endswith("_ND") else "*fp32"
