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
from train.kernels.by_triton.provider import KERNELS

found = {}
for form in FORMS:
    shape = dict(form=form, L=9, D=72, frames=3)
    half, full = case(dtype=torch.bfloat16, rows_dtype=torch.float32, **shape), case(affine=True, **shape)
    assert kernels_for(full[0][0], "fp32") is KERNELS
    for op in ("plain", "gated"):
        found[f"{op} {form} bf16"] = worst(op, half) / torch.finfo(torch.bfloat16).eps
        for rms in (False, True):
            found[f"{op} {form} fp32 {rms}"] = worst(op, full, rms=rms) / torch.finfo(torch.float32).eps
from tests.train.qk_cases import case as qk_case
from tests.train.test_kernels_qk import both as qk_both, worst as qk_worst
for kind in (
    {"rotation": "none", "L": 5, "M": 9, "H": 4, "G": 2},
    {"weights": "all", "L": 3},
    {"d": 12, "L": 3, "rotation": "interleaved"},
    {"weights": "all", "rotation": "interleaved", "L": 3, "per_sample": True},
    {"weights": "bare across", "d": 9, "L": 3, "rotation": "none"},
):
    found[f"qk {kind} fp32"] = qk_worst(qk_case(**kind)) / torch.finfo(torch.float32).eps
    found[f"qk {kind} bf16"] = qk_worst(qk_case(dtype=torch.bfloat16, **kind)) / torch.finfo(torch.bfloat16).eps
first, second = (qk_both(qk_case(B=1, L=9))[0] for _ in range(2))
assert all(map(torch.equal, first, second))
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
    assert len(errors) == 4 * 2 * 3 + 5 * 2 + 3
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

    from train.kernels.by_triton import kernels as triton_kernels
    from train.kernels.by_triton import qk_kernels as triton_qk_kernels

    for module, blocks in (
        (triton_kernels, {"BLOCK": 2048}),
        (triton_qk_kernels, {"BLOCK_H": 16, "BLOCK_R": 64}),
    ):
        for kernel in (module.forward_kernel, module.backward_kernel):
            constants = {
                name: every for name in kernel.arg_names if name.isupper() and len(name) > 1
            } | blocks
            types = {name: kind_of(name) for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
            source = ASTSource(kernel, types, constants)
            assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


def kind_of(name):
    known = {"eps": "fp32", "owner_N": "*i64", "ends": "*i32"}
    if name in known:
        return known[name]
    if name.endswith(("_ND", "Hd", "Gd")):
        return "*bf16"
    arrays = ("_RD", "_D", "_N", "_RPSD", "_C", "_NR", "_SC", "rstd_q", "rstd_k")
    return "*fp32" if name.endswith(arrays) else "i32"
