"""Implementations of attention on a GPU at the shapes of a Wan-1.3B and of wider models, in one table.

    python -m tests.bench.attention --out FILE      # Markdown; FILE with .json has every figure
    python -m tests.bench.attention --tiny          # a toy on the processor, to try the script out

It needs PyTorch alone. FlashAttention 3 and 4 are measured where PyTorch and their packages have them. FLOPs are the
model's: 4 B H L M D in the forward, three times as many with the backward, which recomputes the scores for nothing.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn import attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from reelweave.train.kernels.dense_attention import dense_attention


class Case(NamedTuple):
    """Shape of one attention.

    Attributes:
        name: what it occurs in.
        batch: samples.
        heads: heads.
        queries: query tokens of a sample.
        keys: key tokens of a sample.
        width: width of a head.
        valid: valid keys of each sample, the others are padding; empty: all.
    """

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    valid: Sequence[int] = ()

    @property
    def flops(self) -> int:
        """Multiply-adds of the forward, twice, over valid keys."""
        keys = sum(self.valid) if self.valid else self.batch * self.keys
        return 4 * self.heads * self.queries * keys * self.width


CASES = (
    Case("self, Wan-1.3B, 81 frames of 480 x 832", 1, 12, 32_760, 32_760, 128),
    Case("cross, Wan-1.3B", 1, 12, 32_760, 512, 128),
    Case("cross, Wan-1.3B, 77 keys", 1, 12, 32_760, 77, 128),
    Case("cross, Wan-1.3B, 77 valid keys", 1, 12, 32_760, 512, 128, (77,)),
    Case("self, four samples", 4, 12, 8_190, 8_190, 128),
    Case("cross, four samples of 20 to 512 valid keys", 4, 12, 8_190, 512, 128, (20, 77, 200, 512)),
    Case(
        "joint, two samples, 100 and 512 valid of 512 text tokens", 2, 24, 8_702, 8_702, 128, (8_290, 8_702)
    ),
    Case("self, 24 heads", 1, 24, 16_384, 16_384, 128),
)
TINY = (
    Case("self", 1, 2, 72, 72, 16),
    Case("cross with padding", 2, 2, 72, 12, 16, (5, 12)),
)
EACH_S = 0.5  # longest time for the runs of one figure
RUNS = 9

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Row(NamedTuple):
    """Figures of one implementation at one shape; what is not available has a reason instead.

    Attributes:
        case: the shape's name.
        by: the implementation.
        forward_ms: median time of the forward.
        both_ms: median time of forward and backward.
        forward_tflops: TFLOP/s of the forward.
        both_tflops: TFLOP/s of forward and backward.
        output_error: root of the mean squared error of the output over that of the float32 output.
        gradient_error: the same of the gradient that is furthest off.
        reason: why there are no figures.
    """

    case: str
    by: str
    forward_ms: float = math.nan
    both_ms: float = math.nan
    forward_tflops: float = math.nan
    both_tflops: float = math.nan
    output_error: float = math.nan
    gradient_error: float = math.nan
    reason: str = ""


def inputs(case: Case, device: torch.device) -> tuple[Inputs, torch.Tensor]:
    """Return normal queries, keys and values as layers make them, tokens before heads in memory, and a gradient."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(tokens: int) -> torch.Tensor:
        shape = case.batch, tokens, case.heads, case.width
        x_BLHD = torch.randn(shape, generator=generator, device=device)
        return x_BLHD.to(torch.bfloat16 if device.type == "cuda" else torch.float32).transpose(1, 2)

    return (normal(case.queries), normal(case.keys), normal(case.keys)), normal(case.queries)


def mask_of(case: Case, device: torch.device) -> torch.Tensor | None:
    """Return the mask of valid keys, bool [B, 1, 1, M]; None where all are."""
    if not case.valid:
        return None
    lengths_B = torch.tensor(case.valid, device=device)
    return (torch.arange(case.keys, device=device) < lengths_B[:, None])[:, None, None]


def attends(case: Case, device: torch.device) -> Iterator[tuple[str, Attend]]:
    """Yield ways to compute a case, by name, that need nothing but PyTorch."""
    mask = mask_of(case, device)

    def by(backend: SDPBackend) -> Attend:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        return attend

    def default(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention 2": SDPBackend.FLASH_ATTENTION}
    if device.type == "cpu":
        backends = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    else:
        backends["memory-efficient"] = SDPBackend.EFFICIENT_ATTENTION
    masked = "" if mask is None else ", mask"
    yield f"PyTorch's choice{masked}", default
    if mask is None:
        yield "ours", dense_attention
    for name, backend in backends.items():
        if mask is None or backend != SDPBackend.FLASH_ATTENTION:
            yield f"{name}{masked}", by(backend)
    if mask is not None:
        names = [name for name in backends if name != "memory-efficient"]
        for name in names:
            yield f"{name}, sample by sample", one_by_one(case, backends[name])
        if device.type == "cuda":
            yield "varlen (FlashAttention 2 or cuDNN)", varlen(case, device)


def one_by_one(case: Case, backend: SDPBackend | None) -> Attend:
    """Return attention of each sample to its valid keys; the backend is PyTorch's choice if None."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        context: AbstractContextManager[Any] = sdpa_kernel(backend) if backend else contextlib.nullcontext()
        with context:
            parts = [
                F.scaled_dot_product_attention(q[n : n + 1], k[n : n + 1, :, :keys], v[n : n + 1, :, :keys])
                for n, keys in enumerate(case.valid)
            ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return attend


def varlen(case: Case, device: torch.device) -> Attend:
    """Return attention of packed samples to their packed valid keys, in one kernel."""
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * case.queries
    lengths = torch.tensor((0, *case.valid), dtype=torch.int32, device=device)
    key_ends = lengths.cumsum(0, dtype=torch.int32)
    starts = [case.keys * n for n in range(case.batch)]
    kept = [torch.arange(start, start + n) for start, n in zip(starts, case.valid, strict=True)]
    kept_M = torch.cat(kept).to(device)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q_LHD = q.transpose(1, 2).flatten(0, 1)
        k_MHD, v_MHD = (x.transpose(1, 2).flatten(0, 1).index_select(0, kept_M) for x in (k, v))
        longest = case.queries, max(case.valid)
        y_LHD = torch.as_tensor(varlen_attn(q_LHD, k_MHD, v_MHD, ends, key_ends, *longest))
        return y_LHD.unflatten(0, (case.batch, case.queries)).transpose(1, 2)

    return attend


def newer_flash(device: torch.device) -> Iterator[tuple[str, str]]:
    """Yield FlashAttention 3 and 4 with PyTorch's name for them, and the reason in place of it where there is none."""
    if device.type != "cuda":
        return
    for version, module in ((3, "flash_attn_interface"), (4, "flash_attn.cute")):
        name, found = f"FlashAttention {version}", False
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(module) is not None
        if not hasattr(attention, "activate_flash_attention_impl"):
            yield name, "this PyTorch cannot take it"
        else:
            yield name, f"FA{version}" if found else f"no module {module}"


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the median time of some runs, after one to warm up."""
    run()
    began = time.perf_counter()
    times: list[float] = []
    while len(times) < RUNS and (len(times) < 3 or time.perf_counter() - began < EACH_S):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            before = time.perf_counter()
            run()
            times.append(1000 * (time.perf_counter() - before))
    return median(times)


def results(attend: Attend, given: Inputs, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return the output and the gradients of queries, keys and values."""
    leaves = [x.detach().requires_grad_() for x in given]
    output = attend(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient.to(output.dtype))]


def expected(case: Case, given: Inputs, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return the results in float32, sample by sample."""
    wide = [x.float() for x in given]
    if case.valid:
        return results(one_by_one(case, None), (wide[0], wide[1], wide[2]), gradient)
    return results(F.scaled_dot_product_attention, (wide[0], wide[1], wide[2]), gradient)


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    """Return the root of the mean squared difference, as a share of the true values'."""
    return float((found.float() - true).norm() / true.norm())


def measured(
    case: Case, by: str, attend: Attend, given: Inputs, gradient: torch.Tensor, true: Sequence[torch.Tensor]
) -> Row:
    """Measure one implementation at one shape."""
    device = given[0].device
    try:
        errors = [error(*pair) for pair in zip(results(attend, given, gradient), true, strict=True)]
        with torch.no_grad():
            forward_ms = milliseconds(lambda: attend(*given), device)
        both_ms = milliseconds(lambda: results(attend, given, gradient), device)
    except Exception as failure:  # noqa: BLE001  # whatever kernels and their compilers raise
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        return Row(case.name, by, reason=lines[0][:160])
    speed = case.flops / 1e9
    return Row(
        case.name,
        by,
        forward_ms,
        both_ms,
        speed / forward_ms,
        3 * speed / both_ms,
        errors[0],
        max(errors[1:]),
    )


def measure(cases: Sequence[Case], device: torch.device, until: float) -> Iterator[Row]:
    """Yield figures, PyTorch's own implementations first, and reasons for what is left out past a time."""
    kept = {}
    for case in cases:
        if time.monotonic() > until:
            yield Row(case.name, "all", reason="no time was left")
            continue
        given, gradient = inputs(case, device)
        true = expected(case, given, gradient)
        kept[case] = given, gradient, true
        for by, attend in attends(case, device):
            yield measured(case, by, attend, given, gradient, true)
    for by, name in newer_flash(device):
        if not name.startswith("FA"):
            yield Row("all", by, reason=name)
            continue
        with ExitStack() as stack:
            try:
                attention.activate_flash_attention_impl(name)
            except Exception as failure:  # noqa: BLE001  # code of another package
                yield Row("all", by, reason=str(failure)[:160])
                continue
            if hasattr(attention, "restore_flash_attention_impl"):
                stack.callback(attention.restore_flash_attention_impl)
            for case, (given, gradient, true) in kept.items():
                if time.monotonic() > until:
                    yield Row(case.name, by, reason="no time was left")
                    continue
                ways = {
                    way: attend for way, attend in attends(case, device) if way.startswith("FlashAttention 2")
                }
                for way, attend in ways.items():
                    yield measured(case, way.replace("FlashAttention 2", by), attend, given, gradient, true)


HEADER = (
    "| attention | by | forward ms | TFLOP/s | with backward ms | TFLOP/s | error, output | gradients |\n"
    "|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    if row.reason:
        return f"| {row.case} | {row.by} | {row.reason} | | | | | |"
    return (
        f"| {row.case} | {row.by} | {row.forward_ms:.3f} | {row.forward_tflops:.0f} | {row.both_ms:.3f} "
        f"| {row.both_tflops:.0f} | {row.output_error:.1e} | {row.gradient_error:.1e} |"
    )


def machine(device: torch.device) -> str:
    """Return what is measured on, in a line."""
    if device.type == "cpu":
        return f"A processor, torch {torch.__version__}: these figures mean nothing."
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return f"{torch.cuda.get_device_name()}, {versions}, bfloat16."


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="Markdown file; its neighbour .json gets every figure")
    parser.add_argument(
        "--seconds", type=float, default=38, help="no new shape or package is begun after this"
    )
    parser.add_argument("--tiny", action="store_true", help="a toy on the processor")
    options = parser.parse_args(arguments)
    device = torch.device("cpu" if options.tiny else "cuda")
    until = time.monotonic() + options.seconds
    lines, rows = [machine(device), "", HEADER], []
    print("\n".join(lines), flush=True)
    for row in measure(TINY if options.tiny else CASES, device, until):
        rows.append({name: value for name, value in row._asdict().items() if value == value})  # no NaN
        lines.append(line(row))
        print(lines[-1], flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")
            options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
