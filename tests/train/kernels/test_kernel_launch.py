import pytest

from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.cuda.launch import Dtype

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
