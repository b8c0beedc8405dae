"""Kernel timing on a GPU: calls captured in a CUDA graph, over buffers far larger than the L2 cache.

A graph keeps the host out of the figure. Each call has its own inputs, and its outputs are kept until all
calls are done. So the cache holds nothing that a training step would not find there. On a CPU the calls are
timed as they are, for trying the benchmarks out; such figures say nothing about kernels.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from reelweave.loader.errors import RunError

L2_TIMES = 4
"""Least size of all inputs of a rotation, in sizes of the L2 cache."""
DEEP = 20
"""Calls between two readings of the clock, at least."""
ROUNDS = 15

Call = Callable[[], object]


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Enter a stream for measurements: graphs need another than the default one, for forward and backward."""
    if device.type == "cpu":
        return nullcontext()
    stream: Any = torch.cuda.Stream
    return torch.cuda.stream(stream(device))


def rotation(bytes_of_one: int, device: torch.device) -> int:
    """Return the number of input sets to rotate: `L2_TIMES` the cache, 2 to 64, within half of the free memory."""
    if device.type == "cpu":
        return 2
    free, _ = torch.cuda.mem_get_info(device)
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    copies = max(2, min(64, math.ceil(L2_TIMES * cache / bytes_of_one)))
    fitting = free // 2 // (3 * bytes_of_one)
    if fitting < 2:
        raise RunError(
            f"two sets of {bytes_of_one / 2**30:.1f} GiB do not fit the GPU's free {free / 2**30:.1f} GiB"
        )
    return int(min(copies, fitting))


def median_ms(calls: Sequence[Call], device: torch.device, rounds: int = ROUNDS) -> float:
    """Return the median time of one call in milliseconds; on a GPU call it in `own_stream`.

    Args:
        calls: the same work on different buffers.
        device: device that does the work.
        rounds: number of readings of the clock.
    """
    repeats = math.ceil(DEEP / len(calls))
    if device.type == "cpu":
        return _on_host(calls, rounds)
    graph = _capture_graph(calls)
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    readings: list[float] = []
    for _ in range(rounds + 2):
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        readings.append(begin.elapsed_time(end) / repeats / len(calls))
    return statistics.median(readings[2:])


def host_us(call: Call, device: torch.device, calls: int = 2000) -> float:
    """Return the host's microseconds per call, minimum of five rounds; use tensors too small to fill a GPU."""
    best = math.inf
    for _ in range(5):
        _settle(device)
        start = time.perf_counter()
        for _ in range(calls // 5):
            call()
        best = min(best, (time.perf_counter() - start) / (calls // 5))
    _settle(device)
    return best * 1e6


def copy_gb_per_s(device: torch.device) -> float:
    """Return the bandwidth of a 1 GiB copy on the device, bytes read plus written: the limit for kernels.

    A copy by a kernel: in a graph, PyTorch's own is a copy of the driver's, which an H200 makes at 2.7 TB/s, not 4.2.
    """
    size = 2**30 if device.type == "cuda" else 2**22
    sources = [torch.randn(size // 4, device=device) for _ in range(2)]
    into = [torch.empty_like(source) for source in sources]
    calls = [lambda a=a, b=b: torch.neg(a, out=b) for a, b in zip(sources, into, strict=True)]
    return 2 * size / median_ms(calls, device) / 1e6


def _capture_graph(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    for _ in range(2):
        for call in calls:
            call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        outputs = [call() for call in calls]
    del outputs
    return graph


def _on_host(calls: Sequence[Call], rounds: int) -> float:
    readings = []
    for _ in range(rounds):
        start = time.perf_counter()
        outputs = [call() for call in calls]
        readings.append((time.perf_counter() - start) / len(calls))
        del outputs
    return statistics.median(readings) * 1e3


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
