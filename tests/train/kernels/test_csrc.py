"""What the compiler says of the kernels: no spill, known registers, 16-byte traffic. Needs nvcc, not a GPU.

`make kernels` compiles them, for all architectures.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda import gates, rules
from reelweave.train.kernels.cuda.gates import Cubin
from tests.bench import issue_slots
from tests.bench.sass.model import Gpu

CSRC = Path(__file__).parents[3] / "csrc"
TABLE = CSRC / "registers.json"
COUNTED = "layer_norm_modulate_", "gate_residual_norm_modulate_", "qk_norm_"
# One thread that keeps 64 values alive across a barrier and may have 32 registers.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* data) {
    float value[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) value[i] = data[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; ++i) data[i * 1024 + threadIdx.x] = value[i] * value[63 - i];
}
"""
RELEASE = "13.0"


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Cubin]:
    if gates.nvcc() is None:
        pytest.skip("nvcc is not on PATH: the kernels are checked where the CUDA toolkit is")
    sources = [CSRC / name for name in gates.SOURCES]
    return gates.compile_all(sources, tmp_path_factory.mktemp("cubins"), gates.ARCHITECTURES)


def test_every_source_is_gated() -> None:
    assert sorted(path.name for path in CSRC.glob("*.cu")) == sorted(gates.SOURCES)


@pytest.mark.toolchain
def test_every_kernel_compiles_without_a_spill(cubins: Sequence[Cubin]) -> None:
    assert len(cubins) == len(gates.SOURCES) * len(gates.ARCHITECTURES)
    assert all(cubin.kernels for cubin in cubins)
    stacks = [used.stack for cubin in cubins for used in cubin.kernels.values()]
    assert set(stacks) == {0}


@pytest.mark.toolchain
@pytest.mark.parametrize("architecture", gates.ARCHITECTURES)
def test_the_gate_refuses_a_kernel_that_spills(architecture: int, tmp_path: Path) -> None:
    if gates.nvcc() is None:
        pytest.skip("nvcc is not on PATH")
    source = tmp_path / "planted.cu"
    source.write_text(SPILLS)
    with pytest.raises(RunError, match="spill"):
        gates.compile_cubin(source, architecture, tmp_path)
    source.write_text(SPILLS.replace("(1024, 2)", "(128, 1)"))
    assert gates.compile_cubin(source, architecture, tmp_path).kernels["spills"].stack == 0


@pytest.mark.toolchain
def test_the_registers_are_those_of_the_committed_table(cubins: Sequence[Cubin]) -> None:
    if gates.nvcc_release() != RELEASE:
        pytest.skip(f"the table is of nvcc {RELEASE}, this is {gates.nvcc_release()}")
    committed = json.loads(TABLE.read_text())
    assert gates.register_table(cubins) == committed, (
        "python -m reelweave.train.kernels.cuda.gates writes the table anew"
    )


@pytest.mark.toolchain
def test_rows_travel_in_sixteen_bytes_and_never_through_local_memory(cubins: Sequence[Cubin]) -> None:
    if gates.cuobjdump() is None:
        pytest.skip("cuobjdump is neither on PATH nor in Triton's wheel")
    wrong, seen, tiled = [], 0, 0
    for cubin in cubins:
        for name, opcodes in gates.memory_instructions(cubin):
            if name.endswith("_c4") and cubin.architecture < 90:
                assert opcodes == [], "there are no clusters: the kernel must be empty"
            elif "_tiled_" in name:
                tiled += bool(gates.narrow(opcodes))
            elif name.startswith(("reduce", "qk_norm_weights")):
                assert not gates.local(opcodes)
            else:
                seen += name.startswith(COUNTED)
                two = name.startswith("layer_norm_modulate_forward_")
                rows = rules.constant("ForwardRows") if two else 1
                if gates.narrow(opcodes, rows) or gates.local(opcodes) or not gates.wide(opcodes):
                    wrong.append((cubin.path.name, name, opcodes))
    assert wrong == []
    with_clusters = sum(one >= 90 for one in gates.ARCHITECTURES)
    forwards = sum(len(rules.forward_classes(gated)) for gated in (False, True))
    assert seen == (5 * (forwards + 2 * 4) + 3 * 4) * len(gates.ARCHITECTURES) + 2 * 5 * 2 * with_clusters
    assert tiled > 0, "the tiled kernels load element by element: the check must see that"


@pytest.mark.toolchain
def test_no_kernel_issues_more_than_the_committed_table(cubins: Sequence[Cubin]) -> None:
    """Issue slots per warp and row bound the kernels' speed; see docs/benchmarks/kernels_model.md."""
    if gates.nvcc_release() != RELEASE:
        pytest.skip(f"the table is of nvcc {RELEASE}, this is {gates.nvcc_release()}")
    if gates.cuobjdump() is None:
        pytest.skip("cuobjdump is neither on PATH nor in Triton's wheel")
    modelled = [cubin for cubin in cubins if cubin.architecture == issue_slots.ARCHITECTURE]
    cases = issue_slots.Costs(issue_slots.read(modelled), Gpu()).every()
    committed = json.loads(issue_slots.COMMITTED.read_text())
    found = issue_slots.instruction_table(cases)
    assert found.keys() == committed.keys()
    assert {name: count for name, count in found.items() if count > committed[name]} == {}, (
        "python -m tests.bench.issue_slots --committed writes the table anew"
    )
