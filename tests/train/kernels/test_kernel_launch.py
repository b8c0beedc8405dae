import ctypes
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from reelweave.train.kernels.cuda import host_qk, launch
from reelweave.train.kernels.cuda.launch import Dtype
from reelweave.train.kernels.cuda.rules import struct
from tests.train.kernels.emulated import CSRC

A100_SHARED = 163 << 10


@pytest.mark.parametrize("dim", [8, 760, 1536, 2056, 3072, 5120, 8192, 12288])
@pytest.mark.parametrize("x", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("family", ["layer_norm_modulate", "gate_residual_norm_modulate"])
def test_a_forward_block_covers_the_row_and_leaves_no_warp_idle(
    dim: int, x: Dtype, family: launch.Family
) -> None:
    found = launch.forward_launch(family, dim, x, True)
    assert found is not None
    assert found.threads % launch.WARP == 0
    assert found.threads <= found.largest
    vectors = dim * launch.DTYPE_BYTES[x] // launch.VECTOR_BYTES
    assert vectors <= found.threads * found.vectors < vectors + found.vectors * launch.WARP


@pytest.mark.parametrize("dim", [8, 760, 1128, 1536, 2048, 2056, 3072, 5120, 5128, 8192])
@pytest.mark.parametrize("x", ["bf16", "f16", "f32"])
def test_the_block_covers_the_row_within_its_class(dim: int, x: Dtype) -> None:
    found = launch.backward_launch("layer_norm_modulate", dim, x, True, A100_SHARED)
    assert found is not None
    assert found.threads % launch.WARP == 0
    assert found.threads <= found.largest
    assert dim <= found.threads * found.elements < dim + found.elements * launch.WARP


@pytest.mark.parametrize(
    ("dim", "per_token", "teams"),
    [
        (256, False, 15),
        (1536, False, 6),
        (1536, True, 4),
        (3072, False, 3),
        (5120, False, 2),
        (5120, True, 1),
    ],
)
def test_a_block_works_on_as_many_rows_at_once_as_fit(dim: int, per_token: bool, teams: int) -> None:
    found = launch.backward_launch(
        "layer_norm_modulate", dim, "bf16", True, 226 << 10, True, per_token, launch.MOST_TEAMS
    )
    assert found is not None
    assert found.teams == teams
    ring = launch.ring_bytes(4, found.elements, found.threads)
    assert found.shared_bytes == teams * ring + (teams > 1) * 2 * 4 * dim


@pytest.mark.parametrize("family", ["layer_norm_modulate", "gate_residual_norm_modulate"])
def test_a_block_works_on_one_row_until_a_gpu_has_measured_more(family: launch.Family) -> None:
    for dim in (256, 1536, 3072, 5120, 10240):
        found = launch.backward_launch(family, dim, "bf16", True, 226 << 10, clusters=True)
        assert found is not None
        assert found.teams == 1
        streams = 4 if family == "gate_residual_norm_modulate" else 2
        assert found.shared_bytes == launch.ring_bytes(2 * streams, found.elements, found.threads)


def test_no_more_rows_at_once_than_shared_memory_holds() -> None:
    found = launch.backward_launch(
        "gate_residual_norm_modulate", 1536, "bf16", True, 140 << 10, most_teams=launch.MOST_TEAMS
    )
    assert found is not None
    assert (found.teams, found.shared_bytes) == (5, 5 * 24576 + 3 * 4 * 1536)


@pytest.mark.parametrize("dim", [8200, 10240, 12288, 16376, 16384])
@pytest.mark.parametrize("x", ["bf16", "f16", "f32"])
def test_a_cluster_covers_a_wide_row_and_leaves_no_warp_idle(dim: int, x: Dtype) -> None:
    def wide(clusters: bool, columns: int = dim) -> launch.KernelLaunch | None:
        return launch.backward_launch("gate_residual_norm_modulate", columns, x, True, 227 << 10, clusters)

    assert wide(clusters=False) is None
    found = wide(clusters=True)
    assert found is not None
    assert (found.cluster, found.elements, found.largest) == (4, 16, 256)
    vectors = dim * launch.DTYPE_BYTES[x] // launch.VECTOR_BYTES
    part = -(-vectors // found.cluster)
    last = vectors - (found.cluster - 1) * part
    assert found.threads - launch.WARP < last <= part
    assert part <= found.threads * found.elements * launch.DTYPE_BYTES[x] // launch.VECTOR_BYTES
    assert found.threads <= found.largest
    assert wide(clusters=True, columns=16392) is None


@pytest.mark.parametrize(
    ("dim", "aligned"), [(8200, True), (764, True), (768, False)], ids=["wide", "not in vectors", "unaligned"]
)
def test_what_registers_cannot_serve_goes_to_the_tiled_path(dim: int, aligned: bool) -> None:
    assert launch.backward_launch("layer_norm_modulate", dim, "bf16", aligned, A100_SHARED) is None
    assert launch.forward_launch("layer_norm_modulate", 3 * dim, "bf16", aligned) is None


def test_a_ring_beyond_the_shared_memory_goes_to_the_tiled_path() -> None:
    def gated(dim: int, x: Dtype) -> launch.KernelLaunch | None:
        return launch.backward_launch("gate_residual_norm_modulate", dim, x, True, A100_SHARED)

    assert gated(8192, "bf16") is not None
    assert gated(5120, "f32") is not None
    assert gated(8192, "f32") is None


@pytest.mark.parametrize(("rows", "resident"), [(1, 132), (131, 132), (132, 132), (133, 132), (64_000, 396)])
def test_no_more_blocks_than_fit_and_every_row_has_one(rows: int, resident: int) -> None:
    per_block = launch.rows_per_block(rows, resident)
    count = launch.blocks(rows, per_block)
    assert count <= resident
    assert (count - 1) * per_block < rows <= count * per_block


def test_blocks_of_the_second_stage_are_whole_warps() -> None:
    sizes = itertools.product((1, 2, 21, 5000), (8, 64, 1536, 5120, 16_384), (1, 60, 700, 5700))
    for groups, dim, slots in sizes:
        columns, lanes = launch.reduce_block(groups, dim, slots)
        assert columns * lanes % launch.WARP == 0


def test_one_stride_leads_from_row_to_row_or_a_copy_is_due() -> None:
    base = torch.arange(4.0 * 6 * 16).view(4, 6, 16)
    views = (
        *(base, base[:, :, 8:], base[:, :3], base[:1], base[:, :1], base[::2], base[:, ::2]),
        *(base.transpose(0, 1), base[..., ::2], base[..., :1], base[0], base[0, 0], base[:1, :1]),
        *(base[0, 0].expand(4, 6, 16), base[:, :1].expand(4, 6, 16), base[:1].expand(4, 6, 16)),
        base[:, 0].expand(6, 4, 16),
    )
    strides = set()
    for view in views:
        stride = launch.row_stride(view.shape, view.stride())
        strides.add(stride)
        if stride is not None:
            rows = view.numel() // view.shape[-1]
            assert torch.equal(view.as_strided((rows, view.shape[-1]), (stride, 1)), view.reshape(rows, -1))
    assert {None, 0, 16, 32, 96} <= strides


def test_heads_are_read_by_strides_of_dimensions_longer_than_one() -> None:
    base = torch.empty(4, 6, 3, 16)
    views = (
        *(base, base[:1], base[:, :1], base[:, :, 1:2], base.transpose(1, 2), base[:, :, :, ::2]),
        *(base[..., :1], base[..., 0, None].expand(4, 6, 3, 16), base[:, :0]),
    )
    strides = {host_qk.head_strides(view.shape, view.stride()) for view in views}
    assert {None, (288, 48, 16), (0, 48, 16), (288, 0, 16), (288, 48, 0), (288, 16, 48)} <= strides


def test_python_lays_the_arguments_out_as_the_compiler_does(tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not on PATH")
    structs = re.findall(r"^struct (\w+) {", (CSRC / "args.h").read_text(), re.MULTILINE)
    fields = [(name, field) for name in structs for field, _ in struct(name)._fields_]
    layouts = ", ".join(
        f"int(offsetof({name}, {field})), int(sizeof({name}::{field}))" for name, field in fields
    )
    sizes = ", ".join(f"int(sizeof({name}))" for name in structs)
    source, built = tmp_path / "args.cpp", tmp_path / "args.so"
    source.write_text(
        '#include <cstddef>\n#include "args.h"\nusing namespace reel;\n'
        f'extern "C" {{ int layouts[] = {{{layouts}}}; int sizes[] = {{{sizes}}}; }}\n'
    )
    flags = ("-std=c++17", "-shared", "-fPIC", "-I", str(CSRC))
    subprocess.run(["g++", *flags, str(source), "-o", str(built)], check=True)
    compiled = ctypes.CDLL(str(built))
    expected = [
        number
        for name, field in fields
        for number in (getattr(struct(name), field).offset, getattr(struct(name), field).size)
    ]
    assert [*(ctypes.c_int * len(expected)).in_dll(compiled, "layouts")] == expected
    expected = [ctypes.sizeof(struct(name)) for name in structs]
    assert [*(ctypes.c_int * len(structs)).in_dll(compiled, "sizes")] == expected
