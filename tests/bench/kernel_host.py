"""What the host of a fused operator costs: processor time of a call and its gradient, with launches that do nothing.

    python -m tests.bench.kernel_host                   # the operators here, and PyTorch's layer norm
    python -m tests.bench.kernel_host --beside DIR      # and those of another checkout

Tensors are tiny and of the processor. Launches go through ctypes to a CUDA driver that does nothing (`driver`), or end
before it (`python`). Checkouts up to faae2271 have a compiled C++ host, too (`library`), whose launches do nothing.
Each kind has a process of its own; all take turns, some dozens of calls each, so that a busy machine slows all. It
needs gcc, and g++ for a library.
"""

import argparse
import ctypes
import functools
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CALLS = 60
QUANTILE = 0.2
"""Of a kind's readings: less than the median, since other processes only add."""
DRIVER = """
#include <stddef.h>
#define NOTHING(name) int name() { return 0; }
NOTHING(cuInit) NOTHING(cuCtxPushCurrent_v2) NOTHING(cuCtxPopCurrent_v2) NOTHING(cuModuleLoadData)
NOTHING(cuFuncSetAttribute) NOTHING(cuLaunchKernel) NOTHING(cuLaunchKernelEx)
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return *value = attribute == 75 ? 9 : attribute == 97 ? 227 << 10 : 100, 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &cuInit, 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = &cuInit, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* kernel, int threads, size_t shared) {
    return *blocks = 4, 0;
}
int cuOccupancyMaxActiveClusters(int* clusters, void* kernel, void* config) { return *clusters = 4, 0; }
void launch_nothing(const char* kernel, const void* args, int a, int b, int c, int d, int e) {}
"""


class NullLauncher:
    """Launches nothing, and prepares argument blocks as the driver does."""

    def shared_limit(self, _device: Any) -> int:
        return 226 << 10

    def clusters(self, _device: Any) -> bool:
        return True

    def resident(self, *_how: Any) -> int:
        return 400

    def run(self, *_launch: Any) -> None:
        """Of checkouts before there were plans."""

    def prepare(self, _device: Any, launches: Any) -> Callable[[Any], None]:
        from reelweave.train.kernels.cuda.launcher import argument_blocks

        _, writers = argument_blocks(launches)

        def run(pointers: Any) -> None:
            for write, of_run in zip(writers, pointers, strict=False):
                if of_run:
                    write(*of_run)

        return run


def kernels(kind: str, folder: Path) -> Any:
    """Return the operators of the checkout that is imported, for tensors of the processor."""
    import torch

    types = (torch.bfloat16, torch.float16, torch.float32)

    def serves(x: torch.Tensor, numerics: str) -> bool:
        return not x.is_cuda and x.dtype in types and numerics == "fp32" and x.numel() > 0

    if kind == "library":
        from reelweave.train.kernels.cuda import library

        torch.ops.load_library(str(folder / "library.so"))
        emulate = ctypes.c_void_p.in_dll(ctypes.CDLL(str(folder / "library.so")), "reel_emulate")
        nothing = ctypes.CDLL(str(folder / "driver.so")).launch_nothing
        emulate.value = ctypes.cast(nothing, ctypes.c_void_p).value
        return library.kernels(torch.ops.reelweave_emulated, serves)
    from reelweave.train.kernels.cuda import host
    from reelweave.train.kernels.cuda.driver import TorchLauncher

    driver = ctypes.CDLL(str(folder / "driver.so"))
    launcher = TorchLauncher(driver, lambda _kernel, _arch: b"", lambda _device: 0)
    return host.kernels(launcher if kind == "driver" else NullLauncher(), serves)


def cases() -> dict[str, Callable[[], Any]]:
    """Return a call and its gradient, of each operator and of PyTorch's layer norm."""
    import torch
    from torch.nn import functional as F

    from reelweave.train.kernels.gate_norm_modulate import gate_residual_norm_modulate
    from reelweave.train.kernels.norm_modulate import layer_norm_modulate
    from reelweave.train.kernels.qk_norm import qk_norm

    def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    x, y, q, k = leaf(1, 4, 64), leaf(1, 4, 64), leaf(1, 4, 2, 64), leaf(1, 4, 2, 64)
    gate, scale, shift = (leaf(1, 64, dtype=torch.float32) for _ in range(3))
    weight, bias, angles = leaf(64), leaf(64), torch.randn(4, 32)
    dy, dq = torch.ones_like(x), torch.ones_like(q)
    rotation, gradient = (angles.cos(), angles.sin()), torch.autograd.grad

    def gated() -> Any:
        outputs = gate_residual_norm_modulate(x, y, gate, scale, shift)
        return gradient(outputs, (x, y, gate, scale, shift), (dy, dy))

    def pair() -> Any:
        return gradient(qk_norm(q, k, weight, bias, 1e-6, rotation), (q, k, weight, bias), (dq, dq))

    return {
        "layer_norm_modulate": lambda: gradient(layer_norm_modulate(x, scale, shift), (x, scale, shift), dy),
        "gate_residual_norm_modulate": gated,
        "qk_norm": pair,
        "F.layer_norm": lambda: gradient(F.layer_norm(x, (64,), weight, bias), (x, weight, bias), dy),
    }


def work(kind: str, folder: Path) -> None:
    """Measure what is asked for, until nobody asks."""
    import torch

    from reelweave.train.kernels import providers

    torch.set_num_threads(1)
    loaded = providers.LoadedProvider(providers.PROVIDERS[-1], kernels(kind, folder), "")
    providers.chosen = functools.cache(lambda: loaded)
    calls = cases()
    for call in calls.values():
        for _ in range(5 * CALLS):
            call()
    gc.collect()
    gc.freeze()
    for name in sys.stdin:
        call, start = calls[name.strip()], time.process_time()
        for _ in range(CALLS):
            call()
        print((time.process_time() - start) / CALLS * 1e6, flush=True)


def build(folder: Path, beside: Path | None) -> Iterator[tuple[Path, str]]:
    """Compile the driver and a library, and yield each checkout with the kinds of its hosts."""
    (folder / "driver.c").write_text(DRIVER)
    compile_c = [
        "gcc",
        "-O2",
        "-w",
        "-shared",
        "-fPIC",
        str(folder / "driver.c"),
        "-o",
        str(folder / "driver.so"),
    ]
    subprocess.run(compile_c, check=True)
    for root in (beside, ROOT) if beside else (ROOT,):
        if sources := sorted((root / "csrc").glob("binding*.cpp")):
            import torch

            torch_root = Path(torch.__file__).parent
            flags = (
                "-std=c++17",
                "-O3",
                "-shared",
                "-fPIC",
                "-DREEL_EMULATED",
                "-DTORCH_TARGET_VERSION=0x020b000000000000",
            )
            places = ("-isystem", str(torch_root / "include"), "-L", str(torch_root / "lib"), "-ltorch_cpu")
            library = folder / "library.so"
            subprocess.run(["g++", *flags, *map(str, sources), *places, "-o", str(library)], check=True)
            yield root, "library"
        yield root, "python"
        yield root, "driver"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, help="another checkout, which the ratios are to")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work[0], Path(options.work[1]))
    with tempfile.TemporaryDirectory() as folder:
        kinds = [*build(Path(folder), options.beside and options.beside.resolve())]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", kind, folder],
                env=environment | {"PYTHONPATH": str(root)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for root, kind in kinds
        ]
        print("| us of the processor | " + " | ".join(f"{root.name}, {kind}" for root, kind in kinds) + " |")
        print("|---" * (len(kinds) + 1) + "|")
        for name in ("layer_norm_modulate", "gate_residual_norm_modulate", "qk_norm", "F.layer_norm"):
            readings: list[list[float]] = [[] for _ in workers]
            for _ in range(options.rounds):
                for worker, of_worker in zip(workers, readings, strict=True):
                    worker.stdin.write(f"{name}\n")
                    worker.stdin.flush()
                    of_worker.append(float(worker.stdout.readline()))
            costs = [sorted(of_worker)[int(QUANTILE * len(of_worker))] for of_worker in readings]
            shown = (f"{cost:.1f} ({cost / costs[0]:.2f} x)" for cost in costs)
            print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
        for worker in workers:
            worker.stdin.close()
            worker.wait()
    return None


if __name__ == "__main__":
    main()
