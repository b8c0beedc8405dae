"""Bandwidth of the fused operators relative to a copy on the GPU, beside PyTorch's own chains.

Everything is measured in one run and counted in the bytes that one pass over memory must move; 100 percent is a copy
on the same GPU.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

import torch
from torch.nn import functional as F

from reelweave.loader.errors import UsageError
from reelweave.pipelines.benchmarks.gpu_clock import copy_gb_per_s, host_us, median_ms, own_stream, rotation
from reelweave.pipelines.benchmarks.kernel_cases import (
    EPS,
    GateNormModulate,
    KernelCase,
    NormModulate,
    Operator,
    Outputs,
    Pair,
    QkNorm,
)
from reelweave.pipelines.benchmarks.kernel_goals import BF16, COMPILED, FP32, Direction, GoalRow, goals
from reelweave.train.kernels.kernel_set import Kernels
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate
from reelweave.train.kernels.providers import PROVIDERS

K = 1024
PAPER = KernelCase(1, 64_000, 3072, dtype=torch.float32)
"""AdaptiveLoad, table 2, its largest: forward 1.547 ms, backward 3.986 ms; read as float32 (docs/notes/kernels.md)."""
CASES = (
    PAPER,
    *(KernelCase(1, tokens * K, width) for tokens in (8, 32) for width in (1536, 3072, 5120)),
    KernelCase(1, 64 * K, 5120),
    KernelCase(4, 8 * K, 3072),
    KernelCase(1, 21 * 1560, 3072, "frame", 21),
    KernelCase(1, 32 * K, 3072, "packed", 16),
    KernelCase(1, 32 * K, 3072, "token", 32 * K),
    KernelCase(1, K, 1536),
)
"""The paper's shape, the widths of public models, and the shapes that training meets."""
PAIRS = (
    Pair(8 * K, 12),
    *(Pair(32 * K, heads) for heads in (12, 24, 40)),
    Pair(32 * K, 24, rotated=False),
    *(Pair(32 * K, heads, across_heads=True) for heads in (12, 40)),
)
"""Heads of 128 channels: per head as in our DiT, HunyuanVideo and Cosmos, across heads as in Wan."""
RUNS = 100

Make = Callable[[torch.device], Operator]
Chain = Callable[[Sequence[torch.Tensor]], Outputs]


_TURNS = zip_longest(
    (partial(NormModulate, case) for case in CASES),
    (partial(GateNormModulate, case) for case in CASES if case != PAPER),
    (partial(QkNorm, pair) for pair in PAIRS),
)
OPERATORS: tuple[Make, ...] = tuple(make for turn in _TURNS for make in turn if make is not None)
"""In turn, so that every operator is seen where time runs out."""
TRIAL: tuple[Make, ...] = (
    partial(NormModulate, KernelCase(2, 36, 64, "frame", 3)),
    partial(GateNormModulate, KernelCase(2, 36, 64, "frame", 3)),
    partial(QkNorm, Pair(36, 2, 32)),
)
"""Small enough for a processor, to try the benchmark out."""


@dataclass(frozen=True)
class Plan:
    """Cases of a benchmark run.

    Attributes:
        operators: each makes one operator with buffers of one size.
        compiled: true if `torch.compile` is a peer; it takes seconds for each case.
        runs: repetitions of a backward pass, which must give the same bits.
        seconds: time after which no further size starts; sizes left out are listed. None: no limit.
    """

    operators: Sequence[Make] = OPERATORS
    compiled: bool = True
    runs: int = RUNS
    seconds: float | None = None


def bench_kernels(
    plan: Plan | None = None,
    device: torch.device | None = None,
    providers: Mapping[str, Kernels] | None = None,
) -> dict[str, Any]:
    """Measure milliseconds, GB/s and share of a copy per operator, size, pass and provider; judge the goals.

    Args:
        plan: cases to measure.
        device: device to measure on; a CPU only to try the benchmark.
        providers: providers of the operators, training's choice first; None: all that work here, and with
            nvrtc the D-tile reduction of AdaptiveLoad, 3.3.

    Raises:
        UsageError: there is no GPU.
    """
    plan = plan or Plan()
    if device is None:
        if not torch.cuda.is_available():
            raise UsageError("the benchmark kernels needs a GPU, and PyTorch sees none here")
        device = torch.device("cuda", torch.cuda.current_device())
    # All providers that work here, and the reduction that a paper compares with.
    if providers is None:
        loaded = {provider.name: provider.load() for provider in PROVIDERS if provider.missing() is None}
        providers = {name: kernels for name, kernels in loaded.items() if kernels is not None}
        if "nvrtc" in providers:
            from reelweave.train.kernels.cuda.nvrtc_provider import D_TILE

            providers["D-tile"] = D_TILE
    torch.manual_seed(0)
    # Operators are measured one after the other until the time is over; those left out are named.
    with own_stream(device):
        copy, began = copy_gb_per_s(device), time.monotonic()
        rows: list[GoalRow] = []
        left_out = []
        for make in plan.operators:
            measuring = _Measuring(make, plan, device, copy)
            if plan.seconds is not None and time.monotonic() - began > plan.seconds:
                left_out.append(measuring.name)
            else:
                rows += measuring.rows(providers)
    # Goals are judged by the worst row of each.
    aims = goals(rows, PAPER.name)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "copy_gb_per_s": copy,
        "rows": [row._asdict() for row in rows],
        "left_out": left_out,
        "goals": [goal._asdict() | {"met": goal.met} for goal in aims],
        "host_us": _on_host(device),
    }


class _Measuring:
    """Measurement of one operator at one size."""

    def __init__(self, make: Make, plan: Plan, device: torch.device, copy: float) -> None:
        self.plan, self.device, self.copy = plan, device, copy
        first = make(device)
        self.case = first.case
        self.name = f"{first.name} {first.case.name}"
        sets = rotation(first.moved_bytes(backward=True), device)
        self.sets = [first, *(make(device) for _ in range(sets - 1))]

    def rows(self, providers: Mapping[str, Kernels]) -> Iterator[GoalRow]:
        """Yield rows of both passes of each provider and chain."""
        for provider_index, (name, kernels) in enumerate(providers.items()):
            if kernels.serves(self.sets[0].inputs[0], "fp32"):
                yield from self._provider(name, kernels, ours=provider_index == 0)
        for name, chain in self._chains():
            yield from self._chain(name, chain)

    def _provider(self, name: str, kernels: Kernels, ours: bool) -> Iterator[GoalRow]:
        yield self._row(
            name, "forward", [partial(input_set.forward, kernels) for input_set in self.sets], ours
        )
        outputs = [input_set.forward(kernels) for input_set in self.sets]
        calls = [
            partial(input_set.backward, kernels, out, _upstream(input_set, out))
            for input_set, out in zip(self.sets, outputs, strict=True)
        ]
        yield self._row(name, "backward", calls, ours, same_bits=_alike(calls[0], self.plan.runs))

    def _chains(self) -> Iterator[tuple[str, Chain]]:
        first = self.sets[0]
        if self.case.dtype != torch.float32:
            yield BF16, first.chain
        wide: Any = partial(first.chain, wide=True)
        yield FP32, wide
        if self.plan.compiled:
            torch.compiler.reset()
            yield COMPILED, torch.compile(wide, fullgraph=True, dynamic=False)
        one_row = isinstance(first, NormModulate) and first.case.shape[2] == 1
        if one_row and self.device.type == "cuda" and find_spec("liger_kernel"):
            yield "Liger, as LN with a weight", _liger

    def _chain(self, name: str, chain: Chain) -> Iterator[GoalRow]:
        dtype = self.case.dtype if name == BF16 else None
        inputs = [
            [t.to(dtype or t.dtype).detach().requires_grad_() for t in input_set.inputs]
            for input_set in self.sets
        ]
        yield self._row(name, "forward", [partial(chain, tensors) for tensors in inputs])
        outputs = [chain(tensors) for tensors in inputs]
        calls = [
            partial(torch.autograd.grad, list(out), tensors, _upstream(input_set, out), retain_graph=True)
            for input_set, out, tensors in zip(self.sets, outputs, inputs, strict=True)
        ]
        yield self._row(name, "backward", calls)

    def _row(
        self,
        by: str,
        direction: Direction,
        calls: Sequence[Callable[[], object]],
        ours: bool = False,
        same_bits: bool | None = None,
    ) -> GoalRow:
        milliseconds = median_ms(calls, self.device)
        operator, case = self.sets[0], self.case
        rate = operator.moved_bytes(direction == "backward") / milliseconds / 1e6
        share = rate / self.copy
        return GoalRow(
            operator.name, case.name, direction, by, ours, *case.shape, milliseconds, share, same_bits
        )


def _upstream(operator: Operator, outputs: Outputs) -> list[torch.Tensor]:
    """Draw random gradients of the outputs that are tokens."""
    return [torch.randn_like(out) for out in outputs[: operator.outputs]]


def _alike(call: Callable[[], Outputs], runs: int) -> bool:
    first = call()
    return all(all(map(torch.equal, first, call())) for _ in range(runs - 1))


def _liger(inputs: Sequence[torch.Tensor]) -> Outputs:
    """Return Liger's layer norm, whose weight and bias equal one row of modulation."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    x, scale, shift = inputs
    return [LigerLayerNormFunction.apply(x, 1 + scale[0], shift[0], EPS)]


def _on_host(device: torch.device) -> dict[str, float]:
    """Return host microseconds of a call and its gradient, on tensors that cost the GPU nothing."""
    width = 64
    x, scale, shift = (t.requires_grad_() for t in NormModulate(KernelCase(1, 4, width), device).inputs)
    weight, bias = (torch.randn(width, device=device, dtype=x.dtype, requires_grad=True) for _ in range(2))
    calls = {
        "layer_norm_modulate": partial(layer_norm_modulate, x, scale, shift),
        "F.layer_norm": partial(F.layer_norm, x, (width,), weight, bias),
    }
    dy = torch.ones_like(x)
    return {name: host_us(partial(_both, call, dy), device) for name, call in calls.items()}


def _both(call: Callable[[], torch.Tensor], dy: torch.Tensor) -> None:
    torch.autograd.backward(call(), dy)
