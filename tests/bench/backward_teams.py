"""The backward with several rows of a block at once (teams), beside one row a block, by NVRTC on a GPU.

    python -m tests.bench.backward_teams        # --tiny: on the processor, by the reference, to try the script out

Prints Markdown for docs/benchmarks/kernels.md: milliseconds with the second stage, shares of a copy, and the largest
difference of the two forms' gradients. One minute, of which compiling takes ten seconds.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch

from reelweave.pipelines.benchmarks.gpu_clock import copy_gb_per_s, median_ms, own_stream, rotation
from reelweave.pipelines.benchmarks.kernel_cases import GateNormModulate, KernelCase, NormModulate, Operator
from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.eager import EAGER
from reelweave.train.kernels.kernel_set import Kernels

K = 1024
WIDTHS = (1536, 2048, 3072, 5120)
CASES = (*(KernelCase(1, tokens * K, width) for tokens in (8, 32) for width in WIDTHS),)
RAGGED = (KernelCase(1, 21 * 1560, 3072, "frame", 21), KernelCase(1, 32 * K, 1536, "packed", 16))
TINY = (KernelCase(1, 8, 64), KernelCase(2, 12, 64, "frame", 3))


@contextmanager
def teams_of(most: int) -> Iterator[None]:
    """Launch backwards with this many teams a block at most."""
    usual = partial(launch.backward_launch, most_teams=most)
    with patch.object(launch, "backward_launch", usual):
        yield


def measured(
    kernels: Kernels, sets: list[Operator], device: torch.device
) -> tuple[float, list[torch.Tensor]]:
    """Return milliseconds of a backward, and the gradients of the first set."""
    torch.manual_seed(1)
    outputs = [one.forward(kernels) for one in sets]
    upstream = [
        [torch.randn_like(out) for out in found[: one.outputs]]
        for one, found in zip(sets, outputs, strict=True)
    ]
    calls = [
        partial(one.backward, kernels, *given) for one, *given in zip(sets, outputs, upstream, strict=True)
    ]
    return median_ms(calls, device), list(calls[0]())


def difference(ours: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return the largest difference of two forms' gradients, over the largest of each gradient."""
    pairs = [(one, other) for one, other in zip(ours, others, strict=True) if one.numel()]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    device, kernels = torch.device("cpu"), EAGER
    if not tiny:
        from reelweave.train.kernels.cuda.nvrtc_provider import KERNELS

        device, kernels = torch.device("cuda", torch.cuda.current_device()), KERNELS
    print("| operator | N x D | one row: ms | of a copy | teams: ms | of a copy | gradients differ by |")
    print("|---" * 7 + "|")
    with own_stream(device):
        copy = copy_gb_per_s(device)
        for case in TINY if tiny else (*CASES, *RAGGED):
            for make in (NormModulate, GateNormModulate):
                first = make(case, device)
                bytes_moved = first.moved_bytes(backward=True)
                sets = [first, *(make(case, device) for _ in range(rotation(bytes_moved, device) - 1))]
                with teams_of(1):
                    before, wanted = measured(kernels, list(sets), device)
                with teams_of(launch.MOST_TEAMS):
                    now, found = measured(kernels, list(sets), device)
                shares = [f"{one:.4f} | {bytes_moved / one / 1e6 / copy:.0%}" for one in (before, now)]
                print(
                    f"| {first.name} | {case.name} | {' | '.join(shares)} | {difference(found, wanted):.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
