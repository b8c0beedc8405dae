"""Compile-time checks of csrc/ without a GPU: spills, registers, memory instructions.

ptxas enforces the gate: a spill or any use of local memory is an error. The register table is
csrc/registers.json.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda.sources import CSRC

ARCHITECTURES = (80, 90, 100)
SOURCES = tuple(sorted(path.name for path in CSRC.glob("*.cu")))
# This -Werror is an option of ptxas, without an nvcc equivalent in release 13.
SPILL_GATE = ("-Xptxas", "-v,-warn-spills,-warn-lmem-usage,-Werror")

_RESOURCES = re.compile(
    r"entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<spills>\d+) bytes spill stores"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
_FUNCTION = re.compile(r"^\s*Function : (\w+)$", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_.]*)", re.MULTILINE
)


@dataclass(frozen=True)
class Resources:
    """Registers and bytes of stack per thread of one kernel."""

    registers: int
    stack: int


@dataclass(frozen=True)
class Cubin:
    """A source compiled for one architecture."""

    path: Path
    architecture: int
    kernels: dict[str, Resources]


def nvcc() -> Path | None:
    """Return the CUDA compiler, if there is one."""
    path = shutil.which("nvcc")
    return Path(path) if path else None


def cuobjdump() -> Path | None:
    """Return the disassembler of the toolkit or of Triton's wheel."""
    path = shutil.which("cuobjdump")
    if path:
        return Path(path)
    triton = find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    inside = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
    return inside if inside.exists() else None


def parse_resources(log: str) -> dict[str, Resources]:
    """Parse the log of `ptxas -v` into kernels by name."""
    return {
        match["name"]: Resources(int(match["registers"]), int(match["stack"]))
        for match in _RESOURCES.finditer(log)
    }


def compile_cubin(source: Path, architecture: int, into: Path) -> Cubin:
    """Compile `source` for sm_`architecture`.

    Raises:
        RunError: there is no compiler, or a kernel spills, uses local memory or does not compile.
    """
    compiler = nvcc()
    if compiler is None:
        raise RunError("nvcc is not on PATH: install the CUDA toolkit to check the kernels")
    path = into / f"{source.stem}.sm_{architecture}.cubin"
    done = subprocess.run(  # noqa: S603 - the arguments are ours
        [compiler, "-std=c++17", "-cubin", f"-arch=sm_{architecture}", *SPILL_GATE, source, "-o", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise RunError(
            f"{source.name} for sm_{architecture}: " + "; ".join(errors[:4] or [done.stderr[-500:]])
        )
    return Cubin(path, architecture, parse_resources(done.stderr))


def compile_all(
    sources: Sequence[Path], into: Path, architectures: Sequence[int] = ARCHITECTURES, workers: int = 2
) -> list[Cubin]:
    """Compile every source for every architecture, `workers` at a time."""
    jobs = [(source, architecture) for source in sources for architecture in architectures]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: compile_cubin(job[0], job[1], into), jobs))


def register_table(cubins: Sequence[Cubin]) -> dict[str, dict[str, list[int]]]:
    """Return kernel -> architecture -> [registers, stack bytes] by name, the content of csrc/registers.json."""
    table: dict[str, dict[str, list[int]]] = {}
    for cubin in cubins:
        for name, used in cubin.kernels.items():
            table.setdefault(name, {})[f"sm_{cubin.architecture}"] = [used.registers, used.stack]
    return {name: dict(sorted(table[name].items())) for name in sorted(table)}


def memory_instructions(cubin: Cubin) -> Iterator[tuple[str, list[str]]]:
    """Yield each kernel's opcodes on global (LDG, STG, LDGSTS) or local (LDL, STL) memory.

    Raises:
        RunError: there is no disassembler.
    """
    tool = cuobjdump()
    if tool is None:
        raise RunError("cuobjdump is missing: it comes with the CUDA toolkit and inside Triton's wheel")
    sass = subprocess.run(  # noqa: S603 - the arguments are ours
        [tool, "--dump-sass", cubin.path], capture_output=True, text=True, check=True
    ).stdout
    starts = list(_FUNCTION.finditer(sass))
    for start, end in zip(starts, [*(s.start() for s in starts[1:]), len(sass)], strict=True):
        opcodes = (match["opcode"] for match in _INSTRUCTION.finditer(sass, start.end(), end))
        yield (
            start[1],
            [code for code in opcodes if code.split(".")[0] in {"LDG", "STG", "LDGSTS", "LDL", "STL"}],
        )


def local(opcodes: Sequence[str]) -> list[str]:
    """Return the opcodes on local memory."""
    return [code for code in opcodes if code.startswith(("LDL", "STL"))]


def wide(opcodes: Sequence[str]) -> bool:
    """Return True if rows are loaded and stored in 16 bytes: both directions have such instructions.

    Rows are loaded into shared memory, or into registers and leave the caches first (`.EF`), unlike the modulation.
    """
    vectors = [code for code in opcodes if ".128" in code]
    loads = [
        code for code in vectors if code.startswith("LDGSTS") or (code.startswith("LDG") and ".EF" in code)
    ]
    return bool(loads) and any(code.startswith("STG") for code in vectors)


def narrow(opcodes: Sequence[str], rows: int = 1) -> list[str]:
    """Return the opcodes that move less than 16 bytes of a row.

    Excludes a row's statistics and angles of a float32 rotation (8 bytes, read-only, shared by heads and
    samples). Excludes group offsets, too: plain 4-byte words, at most eight for each of the `rows` that a
    kernel has at once.
    """
    narrow = [code for code in opcodes if ".128" not in code and not code.startswith(("LDL", "STL"))]
    narrow = [code for code in narrow if code != "LDG.E.64.CONSTANT"]
    words = [code for code in narrow if code in {"LDG.E", "STG.E", "LDG.E.CONSTANT"}]
    return narrow if len(words) < len(narrow) or len(words) > 8 * rows else []


def nvcc_release() -> str | None:
    """Return the compiler's release, such as "13.0"."""
    compiler = nvcc()
    if compiler is None:
        return None
    text = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    match = re.search(r"release ([\d.]+)", text)
    return match[1] if match else None


def main() -> None:
    """Compile the kernels of this checkout and write csrc/registers.json."""
    csrc = Path(__file__).resolve().parents[3] / "csrc"
    with TemporaryDirectory() as into:
        table = register_table(compile_all([csrc / name for name in SOURCES], Path(into)))
    lines = [f"  {json.dumps(name)}: {json.dumps(used)}" for name, used in table.items()]
    (csrc / "registers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
