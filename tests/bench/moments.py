"""AdamW's moments in bfloat16 and 8 bits: how far weights go astray, the time of an update, the bytes.

    python -m tests.bench.moments

Prints a Markdown table. The weights are a matrix whose gradients are noise on a tenth of its size. Their size spans
three decades along each row, of 256 or of 1,024 values, and falls to a fifth halfway. torchao's AdamW8bit runs
beside ours, uncompiled.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import nn

from reelweave.train.config.optimizer import OptimizerConfig
from reelweave.train.step.optimizer import build_optimizer

STEPS, ROWS = 1000, 16
UPDATED = (4096, 2048)
CASES = [(decay, row) for decay in (0.99, 0.999) for row in (1024, 256)]
"""Decay rate of the second moment, and values of a row, on which three decades lie; a block has 256 values."""


def ours(moments: str) -> Callable[[dict[str, nn.Parameter], tuple[float, float]], torch.optim.Optimizer]:
    return lambda weights, betas: build_optimizer(
        OptimizerConfig(lr=1e-2, betas=betas, moments=moments), weights, weights
    )


def torchao(weights: dict[str, nn.Parameter], betas: tuple[float, float]) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit, adam

    # Compiling for a processor takes longer than all that is measured here.
    adam.torch.compile = lambda function, **_: function
    return AdamW8bit(list(weights.values()), lr=1e-2, betas=betas, weight_decay=0.01, block_size=256)


KINDS = {
    "float32": ours("float32"),
    "bfloat16": ours("bfloat16"),
    "8bit": ours("8bit"),
    "torchao 0.18 AdamW8bit": torchao,
}


def gradients(row: int) -> Iterator[torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        noise = torch.randn((ROWS, row), generator=drawn) * (1.0 if step < STEPS // 2 else 0.2)
        yield (0.1 + noise) * torch.logspace(-3, 0, row)


def trained(kind: str, decay: float, row: int) -> torch.Tensor:
    weights = {"matrix": nn.Parameter(torch.zeros(ROWS, row))}
    optimizer = KINDS[kind](weights, (0.9, decay))
    for gradient in gradients(row):
        weights["matrix"].grad = gradient
        optimizer.step()
    return weights["matrix"].detach()


def seconds(kind: str) -> float:
    weights = {"matrix": nn.Parameter(torch.zeros(UPDATED))}
    optimizer = KINDS[kind](weights, (0.9, 0.99))
    weights["matrix"].grad = torch.randn(UPDATED)
    optimizer.step()
    found = []
    for _ in range(5):
        begin = time.process_time()
        optimizer.step()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def bytes_a_weight(kind: str) -> float:
    weights = {"matrix": nn.Parameter(torch.zeros(UPDATED))}
    optimizer = KINDS[kind](weights, (0.9, 0.99))
    weights["matrix"].grad = torch.zeros(UPDATED)
    optimizer.step()
    state = [one for name, one in optimizer.state[weights["matrix"]].items() if name != "step"]
    stored = [
        [one.codes, one.scale] if hasattr(one, "codes") else [one] for one in state
    ]  # torchao's, or plain
    return sum(one.nbytes for one in chain.from_iterable(stored)) / math.prod(UPDATED)


def main() -> None:
    torch.set_num_threads(1)
    exact = {case: trained("float32", *case) for case in CASES}
    columns = [f"beta2 {decay}, rows of {row}" for decay, row in CASES]
    print(f"| moments | bytes a weight | {' | '.join(columns)} | time of an update |")
    print("|---|---|" + "---|" * len(CASES) + "---|")
    base = seconds("float32")
    for kind in KINDS:
        away = [
            f"{(trained(kind, *case) - wanted).norm() / wanted.norm():.3f}" for case, wanted in exact.items()
        ]
        print(
            f"| {kind} | {bytes_a_weight(kind):.2f} | {' | '.join(away)} | {seconds(kind) / base:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
