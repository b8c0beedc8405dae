"""The library: its host side in C++ against the one in Python, and that it builds, links and loads without a GPU."""

import ctypes
import itertools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.kernels.checks import check, check_qk
from reelweave.train.kernels.cuda import build, host, launch, launch_qk, library
from reelweave.train.kernels.cuda.gates import nvcc
from reelweave.train.kernels.cuda.rules import struct
from reelweave.train.kernels.eager import with_references
from reelweave.train.kernels.kernel_set import OPERATORS
from tests.thorough import thorough
from tests.train.kernels.emulated import CSRC, EmulatedLauncher

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
HAS_CUDA = (Path(torch.__file__).parent / "lib/libtorch_cuda.so").exists()
STRUCTS = re.findall(r"^struct (\w+) {", (CSRC / "args.h").read_text(), re.MULTILINE)
RULES = """
#include <cstdio>
#include "launch_qk.h"
using namespace reel;
static char text[200];
extern "C" {
int elements, largest, threads, shared;
int cluster, teams;
int forward_of(int gated, int dim, int bytes, int aligned) {
    const auto found = forward_launch(gated, dim, bytes, aligned);
    if (!found) return 0;
    elements = found->vectors, largest = found->largest, threads = found->threads, shared = found->rows;
    return 1;
}
const char* forward_called(const char* family, const char* x, const char* m) {
    const ForwardLaunch launch{elements, largest, threads, shared};
    snprintf(text, sizeof(text), "%s", forward_name(family, x, m, launch).c_str());
    return text;
}
int backward_of(int gated, int dim, int bytes, int aligned, int limit, int clusters, int token, int most) {
    const auto found = backward_launch(gated, dim, bytes, aligned, limit, clusters, token, most ? most : kTeams);
    if (!found) return 0;
    elements = found->elements, largest = found->largest, threads = found->threads, shared = found->shared_bytes;
    cluster = found->cluster, teams = found->teams;
    return 1;
}
const char* backward_called(const char* family, const char* x, const char* m, int token) {
    const Launch launch{elements, largest, threads, shared, cluster};
    snprintf(text, sizeof(text), "%s", backward_name(family, x, m, launch, token).c_str());
    return text;
}
const char* tiled(const char* family, const char* step, const char* x, const char* m, int token) {
    snprintf(text, sizeof(text), "%s", tiled_name(family, step, x, m, token).c_str());
    return text;
}
int threads_of(int dim) { return tiled_threads(dim); }
i64 per_block(i64 rows, i64 resident) { return rows_per_block(rows, resident); }
int reduce_of(i64 groups, int dim, i64 slots) {
    const auto block = reduce_block(groups, dim, slots);
    return block.columns << 16 | block.lanes;
}
i64 blocks(i64 rows, i64 per_block) { return ceil_div(rows, per_block); }
i64 slots_of(i64 rows, i64 per_block, i64 groups) { return slots(rows, per_block, groups); }
int token(i64 rows, i64 groups, int packed) { return is_per_token(rows, groups, packed); }
i64 stride(const i64* sizes, const i64* strides, int dims) { return row_stride(sizes, strides, dims).value_or(-1); }
int aligned(i64 pointer, i64 stride, int bytes) { return is_aligned(reinterpret_cast<void*>(pointer), stride, bytes); }
int of_pair(int backward, i64 heads, i64 width, int bytes, int across, int halves, int aligned, int limit) {
    const auto found = pair_launch(backward, heads, width, bytes, across, halves, aligned, limit);
    if (!found) return 0;
    threads = found->threads, elements = found->lanes, shared = found->shared_bytes;
    return 1;
}
const char* pair_name(int backward, int across, const char* x) {
    snprintf(text, sizeof(text), "%s", pair_kernel_name(backward, across, x).c_str());
    return text;
}
i64 pair_per_block(i64 q_rows, i64 k_rows, i64 resident) { return pair_rows_per_block(q_rows, k_rows, resident); }
int heads_of(const i64* sizes, const i64* strides, i64* out) {
    const auto found = head_strides(sizes, strides);
    if (found) out[0] = found->sample, out[1] = found->token, out[2] = found->head;
    return bool(found);
}
}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("g++ is not on PATH")
    source = tmp_path_factory.mktemp("rules") / "rules.cpp"
    places = ", ".join(
        f"int(offsetof({name}, {field})), int(sizeof({name}::{field}))"
        for name in STRUCTS
        for field, _ in struct(name)._fields_
    )
    sizes = ", ".join(f"int(sizeof({name}))" for name in STRUCTS)
    source.write_text(
        f'#include <cstddef>\n{RULES}extern "C" {{ int places[] = {{{places}}}; int sizes[] = {{{sizes}}}; }}\n'
    )
    built = source.with_suffix(".so")
    flags = ("-std=c++17", "-shared", "-fPIC", "-I", str(CSRC))
    subprocess.run(["g++", *flags, str(source), "-o", str(built)], check=True)
    found = ctypes.CDLL(str(built))
    found.forward_called.restype = found.backward_called.restype = found.tiled.restype = (
        found.pair_name.restype
    ) = ctypes.c_char_p
    found.pair_per_block.restype = ctypes.c_longlong
    found.per_block.restype = found.slots_of.restype = found.stride.restype = ctypes.c_longlong
    return found


def value(rules, name):
    return ctypes.c_int.in_dll(rules, name).value


FAMILIES = ("layer_norm_modulate", "gate_residual_norm_modulate")


def test_geometry_and_names_are_those_of_python(rules):
    served = 0
    wide = (*range(7160, 8210), *range(10200, 10300), 12288, *range(16300, 16400), *range(24560, 24600))
    dims = (*range(1, 300), *range(2000, 2100), 3072, *range(5100, 5140), *wide)
    for family, x, aligned, dim in itertools.product(FAMILIES, ("bf16", "f32"), (False, True), dims):
        gated, size = family.startswith("gate"), launch.DTYPE_BYTES[x]
        forward = launch.forward_launch(family, dim, x, aligned)
        assert bool(rules.forward_of(gated, dim, size, aligned)) == (forward is not None)
        if forward:
            given = (value(rules, name) for name in ("elements", "largest", "threads", "shared"))
            assert launch.ForwardLaunch(*given) == forward
            name = launch.forward_name(family, x, "f32", forward)
            assert rules.forward_called(family.encode(), x.encode(), b"f32").decode() == name
        for limit, *how, most in itertools.product(
            (99 << 10, 227 << 10), (False, True), (False, True), (0, launch.MOST_TEAMS)
        ):
            asked = {"most_teams": most} if most else {}
            expected = launch.backward_launch(family, dim, x, aligned, limit, *how, **asked)
            assert bool(rules.backward_of(gated, dim, size, aligned, limit, *how, most)) == (
                expected is not None
            )
            if expected is None:
                continue
            served += 1
            fields = ("elements", "largest", "threads", "shared", "cluster", "teams")
            assert launch.KernelLaunch(*(value(rules, name) for name in fields)) == expected
            token = how[1]
            name = launch.backward_name(family, x, "f32", expected, token)
            assert rules.backward_called(family.encode(), x.encode(), b"f32", token).decode() == name
    assert served > 1000
    for family, step, token in itertools.product(FAMILIES, ("forward", "rows", "columns"), (False, True)):
        name = launch.tiled_name(family, step, "f16", "f16", token)
        cpp_step = step if step == "forward" else f"backward_{step}"
        assert rules.tiled(family.encode(), cpp_step.encode(), b"f16", b"f16", token).decode() == name


def test_decisions_are_those_of_python(rules):
    long = ctypes.c_longlong
    for rows, resident, groups in itertools.product(
        (0, 1, 2, 37, 64_000, 2**31 + 5), (1, 132, 396), (1, 2, 37)
    ):
        per_block = launch.rows_per_block(rows, resident)
        assert rules.per_block(long(rows), long(resident)) == per_block
        assert rules.slots_of(long(rows), long(per_block), long(groups)) == launch.slots(
            rows, per_block, groups
        )
        for packed in (False, True):
            assert rules.token(long(rows), long(groups), packed) == launch.is_per_token(rows, groups, packed)
    for groups, dim, slots in itertools.product(
        (1, 2, 21, 5000), (8, 64, 1536, 5120, 16_384), (1, 60, 700, 5700)
    ):
        columns, lanes = launch.reduce_block(groups, dim, slots)
        assert rules.reduce_of(long(groups), dim, long(slots)) == columns << 16 | lanes
        assert columns * lanes % launch.WARP == 0
    assert all(rules.threads_of(dim) == launch.tiled_threads(dim) for dim in range(1, 600))
    for pointer, stride, size in itertools.product((0, 8, 16, 2**40 + 16), (1, 4, 8, 12), (2, 4)):
        assert rules.aligned(long(pointer), long(stride), size) == launch.is_aligned(pointer, stride, size)
    base = torch.arange(4.0 * 6 * 16).view(4, 6, 16)
    views = [
        *(
            base,
            base[:, :, 8:],
            base[:, :3],
            base[:1],
            base[:, :1],
            base[::2],
            base[:, ::2],
            base.transpose(0, 1),
        ),
        *(base[..., ::2], base[..., :1], base[0], base[0, 0], base[:1, :1], base[0, 0].expand(4, 6, 16)),
        *(base[:, :1].expand(4, 6, 16), base[:1].expand(4, 6, 16), base[:, 0].expand(6, 4, 16)),
    ]
    seen = set()
    for view in views:
        expected = launch.row_stride(view.shape, view.stride())
        sizes, strides = ((long * view.dim())(*numbers) for numbers in (view.shape, view.stride()))
        assert rules.stride(sizes, strides, view.dim()) == (-1 if expected is None else expected)
        seen.add(expected)
        if expected is not None:
            rows = view.numel() // view.shape[-1]
            assert torch.equal(view.as_strided((rows, view.shape[-1]), (expected, 1)), view.reshape(rows, -1))
    assert {None, 0, 16, 32, 96} <= seen


def test_the_launches_of_pairs_are_those_of_python(rules):
    long, served, flags = ctypes.c_longlong, 0, (False, True)
    for direction, x, across, halves, aligned, limit in itertools.product(
        ("forward", "backward"), ("bf16", "f32"), flags, flags, flags, (99 << 10, 163 << 10)
    ):
        for heads, width in itertools.product((1, 3, 12, 40, 64, 65), (*range(4, 300, 4), 512, 1024)):
            expected = launch_qk.pair_launch(direction, heads, width, x, across, halves, aligned, limit)
            size, backward = launch.DTYPE_BYTES[x], direction == "backward"
            found = rules.of_pair(backward, long(heads), long(width), size, across, halves, aligned, limit)
            assert bool(found) == (expected is not None)
            if expected is not None:
                served += 1
                given = (value(rules, name) for name in ("threads", "elements", "shared"))
                assert launch_qk.PairLaunch(*given) == expected
        name = launch_qk.kernel_name(direction, across, x)
        assert rules.pair_name(direction == "backward", across, x.encode()).decode() == name
    assert served > 1000
    for q_rows, k_rows, resident in itertools.product((0, 1, 37, 2**31 + 5), (0, 9, 64_000), (1, 2, 132)):
        expected = launch_qk.rows_per_block(q_rows, k_rows, resident)
        assert rules.pair_per_block(long(q_rows), long(k_rows), long(resident)) == expected
    base = torch.empty(4, 6, 3, 16)
    views = (
        *(base, base[:1], base[:, :1], base[:, :, 1:2], base.transpose(1, 2), base[:, :, :, ::2]),
        *(base[..., :1], base[..., 0, None].expand(4, 6, 3, 16), base[:, :0], base.expand(4, 6, 3, 16)),
    )
    seen = set()
    for view in views:
        expected = launch_qk.head_strides(view.shape, view.stride())
        sizes, strides, out = (
            (long * 4)(*view.shape),
            (long * 4)(*view.stride()),
            (long * 3)(),
        )
        assert bool(rules.heads_of(sizes, strides, out)) == (expected is not None)
        assert expected is None or tuple(out) == expected
        seen.add(expected)
    assert {None, (288, 48, 16), (0, 48, 16), (288, 0, 16), (288, 48, 0), (288, 16, 48)} <= seen


def test_python_lays_the_arguments_out_as_the_compiler_does(rules):
    found = [
        number
        for name in STRUCTS
        for field, _ in struct(name)._fields_
        for number in (getattr(struct(name), field).offset, getattr(struct(name), field).size)
    ]
    assert found == [*(ctypes.c_int * len(found)).in_dll(rules, "places")]
    sizes = [ctypes.sizeof(struct(name)) for name in STRUCTS]
    assert sizes == [*(ctypes.c_int * len(sizes)).in_dll(rules, "sizes")]


@pytest.fixture(scope="module")
def operators(emulated_binding):
    return library.kernels(torch.ops.reelweave_emulated, lambda _x, _numerics: True)


def recorded(kernels, into):
    """The same operators, and what they gave."""

    def record(operator):
        def call(*arguments):
            into.append(operator(*arguments))
            return into[-1]

        return call

    return replace(kernels, **{name: record(getattr(kernels, name)) for name in OPERATORS})


CASES = [*check.cases([(9, 136), (5, 67)])]
PAIRS = [(9, 9, 3, 3, 64), (5, 3, 2, 4, 80), (3, 3, 2, 1, 256), (7, 7, 3, 2, 20), (4, 0, 2, 2, 64)]
WANTED = {form: [case for case in CASES if case.form == form][::3] for form in check.FORMS}


@pytest.mark.toolchain
@pytest.mark.parametrize(
    "wanted",
    [
        *(
            pytest.param(cases, id=form, marks=() if form == "packed" else thorough)
            for form, cases in WANTED.items()
        ),
        pytest.param([*check_qk.cases(PAIRS)][1::4], id="pairs"),
    ],
)
def test_the_operators_in_cpp_are_right_and_those_in_python_bit_for_bit(operators, emulated_kernels, wanted):
    python = host.kernels(EmulatedLauncher(emulated_kernels), lambda _x, _numerics: True)
    found, expected = [], []
    assert list(check.failures(recorded(with_references(operators), found), CPU, wanted)) == []
    assert list(check.failures(recorded(with_references(python), expected), CPU, wanted)) == []
    assert len(found) == len(expected) == 3 * len(wanted)
    for one, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.toolchain
@pytest.mark.parametrize(("width", "answers"), [(64, 4), (68, 0)])
def test_a_pair_that_no_kernel_takes_gets_no_answer(emulated_binding, width, answers):
    qkv = torch.randn(1, 3, 3, 2, width).bfloat16()
    q, k, v = qkv.unbind(2)
    tail = (None, None, None, None, 1e-6, False, False)
    assert len(torch.ops.reelweave_emulated.qk_norm(q, k, *tail)) == answers
    rstd = torch.ones(1, 3, 2)
    assert len(torch.ops.reelweave_emulated.qk_norm_backward(v, v, q, k, rstd, rstd, *tail)) == answers


@pytest.mark.toolchain
def test_types_without_kernels_are_refused(operators):
    x, row = torch.zeros(1, 2, 8), torch.zeros(1, 8)
    with pytest.raises(RuntimeError, match="float32, bfloat16 and float16 only"):
        operators.norm_modulate(x.double(), row, row, None, None, None, 1e-6, False, "fp32")
    heads = x.double().unsqueeze(2)
    with pytest.raises(RuntimeError, match="float32, bfloat16 and float16 only"):
        operators.qk_norm(heads, heads, None, None, None, None, 1e-6, False, False, "fp32")


PART = """
#include "instances.cuh"
REEL_FORWARD(3, 128, 7, layer_norm_modulate, false, bf16, __nv_bfloat16, f32, float)
REEL_REGISTERS(16, 128, 5, 3, layer_norm_modulate, false, bf16, __nv_bfloat16, f32, float)
"""
LOADED = """
import ctypes, sys, torch
from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda import library
try:
    library.loaded(sys.argv[1])
except RunError as error:  # there is no GPU; but its own CUDA runtime answers
    print(error)
has = ctypes.CDLL(sys.argv[1]).reel_has_kernel
assert has(b"layer_norm_modulate_forward_bf16_f32_v3_t128") and has(b"reduce_bf16") and not has(b"reduce_f64")
x, row = torch.zeros(1, 2, 8), torch.zeros(1, 8)
try:
    torch.ops.reelweave_library.norm_modulate(x, row, row, None, None, None, 1e-6, False)
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.toolchain
@pytest.mark.skipif(nvcc() is None, reason="nvcc is not on PATH")
@pytest.mark.skipif(not HAS_CUDA, reason="PyTorch is built without CUDA")
def test_the_library_links_and_loads_without_a_gpu(tmp_path):
    part, built = tmp_path / "part.cu", tmp_path / "library.so"
    part.write_text(PART)
    # All of the host side and a part of the kernels: all of these take half a minute.
    made = build.command(nvcc(), [90], built, [*CSRC.glob("*.cpp"), CSRC / "reduce.cu", part])
    subprocess.run([*made, f"-I{CSRC}"], check=True)
    run = subprocess.run([sys.executable, "-c", LOADED, built], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "'reelweave_library::norm_modulate' with arguments from the 'CPU' backend" in run.stdout
    assert torch.cuda.is_available() or "cannot use the GPUs here: " in run.stdout
    needed = subprocess.run(["ldd", built], capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed


def test_the_library_is_found_by_its_sources_and_gpus(tmp_path):
    assert "not built" in library.find(tmp_path, [90])
    (tmp_path / "reelweave-0123456789abcdef-sm90.so").touch()
    assert "is of other sources" in library.find(tmp_path, [90])
    older, newer = (tmp_path / library.name(built) for built in ([80], [90, 100]))
    newer.touch()
    assert "is for other GPUs: python -m reelweave.train.kernels build --arch 80 90" in library.find(
        tmp_path, [80, 90]
    )
    assert library.find(tmp_path, [90]) == newer
    older.touch()
    assert library.find(tmp_path, [86]) == older
    # PTX of the newest serves what comes later.
    assert library.find(tmp_path, [120]) in (older, newer)


@pytest.mark.skipif(
    nvcc() is None or not HAS_CUDA, reason="nvcc is not on PATH, or PyTorch is built without CUDA"
)
def test_what_cannot_be_built_is_said_in_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="sm_75 is too old"):
        build.build([75], tmp_path)
    with pytest.raises(UsageError, match="does not know sm_999"):
        build.build([999], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written .* --out"):
        build.build([90], tmp_path / "file")
    old = tmp_path / "nvcc"
    old.write_text("#!/bin/sh\necho release 11.8, V11.8.89\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match=r"nvcc 11.8 is too old"):
        build.build([90], tmp_path)
    old.unlink()
    with pytest.raises(RunError, match="nvcc is not on PATH"):
        build.build([90], tmp_path)
