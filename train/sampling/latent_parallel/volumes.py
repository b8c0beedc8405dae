"""Bytes and work of Latent Parallelism beside exact methods, from shapes alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.traffic import AttentionSize, ring_bytes, ulysses_bytes
from reelweave.train.sampling.latent_parallel.parts import LatentDivision, divide
from reelweave.train.sampling.latent_parallel.rules import MODES, Rules

FLOAT32 = 4


@dataclass(frozen=True)
class LatentRun:
    """Latents and steps of a run.

    Attributes:
        channels: channels of the latents.
        size: latent frames, rows and columns.
        patch: latent frames, rows and columns of a patch.
        parts: number of parts, K.
        steps: number of steps.
    """

    channels: int
    size: tuple[int, int, int]
    patch: tuple[int, int, int]
    parts: int
    steps: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Patches along time, rows and columns."""
        T, H, W = (n // p for n, p in zip(self.size, self.patch, strict=True))
        return T, H, W

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    @property
    def latent_bytes(self) -> int:
        """Bytes of the latents in float32."""
        return FLOAT32 * self.channels * math.prod(self.size)

    def divisions(self, rules: Rules) -> list[LatentDivision | None]:
        """Return the division of every step."""
        return [
            divide(rules, self.grid, self.patch, self.parts, step, self.steps) for step in range(self.steps)
        ]

    def part_bytes(self, division: LatentDivision, index: int) -> int:
        """Return the bytes of a part in float32."""
        return self.latent_bytes * division.lengths[index] // self.size[division.axis]


def paper_worker_bytes(run: LatentRun, overlap: float) -> list[int]:
    """Return what each worker but the master sends by the paper's protocol: Table 1 of arXiv 2512.07350v1, GPUs 2 to K.

    A worker returns its part's two predictions of guidance in float32, each step. The master scatters the latents;
    its published bytes include some that no formula of the paper explains.
    """
    mode = MODES["paper"]
    rules = Rules(mode.axes, mode.cores, (overlap, overlap), mode.ramp)
    divisions = [division for division in run.divisions(rules) if division is not None]
    return [
        2 * sum(run.part_bytes(division, index) for division in divisions) for index in range(1, run.parts)
    ]


def sent_bytes(run: LatentRun, rules: Rules, index: int) -> int:
    """Return the bytes a rank sends in the divided steps of a video, without comparisons of latents.

    Args:
        run: shapes.
        rules: the mode's: a ring all-reduce of the whole prediction, or a gather of parts.
        index: index of the rank's part.
    """
    divisions = [division for division in run.divisions(rules) if division is not None]
    num_peers = run.parts - 1
    if rules.reduce == "sum":
        return len(divisions) * 2 * num_peers * run.latent_bytes // run.parts
    return sum(num_peers * run.part_bytes(division, index) for division in divisions)


@dataclass(frozen=True)
class ModelShape:
    """Transformer with attention over all tokens.

    Attributes:
        layers: number of blocks.
        hidden: width of a token.
        heads: number of attention heads.
        inner: width within the MLP.
        text_tokens: number of text tokens.
    """

    layers: int
    hidden: int
    heads: int
    inner: int
    text_tokens: int


def exact_bytes(run: LatentRun, model: ModelShape, passes: int = 2) -> dict[str, int]:
    """Return the bytes a rank sends in one step by exact methods in bfloat16, by name, without uneven parts.

    Tensor parallelism has three ring all-reduces of all tokens a block (self-attention, cross-attention, MLP).
    """
    P, tokens = run.parts, run.tokens
    cut = Partition.even(tokens, P)
    size = AttentionSize(1, model.heads, model.hidden // model.heads, 2)
    blocks = passes * model.layers
    return {
        "tensor parallel": blocks * 3 * 2 * (P - 1) * tokens * model.hidden * 2 // P,
        "ring": blocks * ring_bytes(size, cut, P - 1)[0],
        "ulysses": blocks * ulysses_bytes(size, cut, P - 1)[0],
    }


@dataclass(frozen=True)
class Shares:
    """Work of a run's divided steps, in units of the whole video's.

    Attributes:
        linear: the largest part's share of work that grows with the tokens, mean of the steps.
        attention: the largest part's share of pairs of tokens.
        total_linear: all parts' work that grows with the tokens; above 1: extra work.
        total_attention: all parts' pairs of tokens; below 1: attention left out.
    """

    linear: float
    attention: float
    total_linear: float
    total_attention: float


def shares(run: LatentRun, rules: Rules) -> Shares:
    """Return the shares of work; an even split without loss has 1 / K, 1 / K, 1 and 1."""
    rows = []
    for division in run.divisions(rules):
        if division is not None:
            all_ = run.grid[division.axis]
            fractions = [part.length / all_ for part in division.parts]
            pairs = [share**2 for share in fractions]
            rows.append((max(fractions), max(pairs), sum(fractions), sum(pairs)))
    return Shares(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def divided_axes(divisions: Sequence[LatentDivision | None]) -> list[int | None]:
    """Return the divided axis of every step; None: the step sees everything, undivided or as a single part."""
    return [
        None if division is None or sum(part.length > 0 for part in division.parts) == 1 else division.axis
        for division in divisions
    ]
