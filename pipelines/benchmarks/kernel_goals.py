"""Goals of the fused operators on an H200, and whether measured rows reach them; pure functions."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Direction = Literal["forward", "backward"]
Reached = tuple[float, str]
LARGE = 50_000_000
"""Elements, N x D, from which the share of a copy is that of a kernel alone."""


class GoalRow(NamedTuple):
    """One measured pass: operator, size, direction and provider or peer.

    Attributes:
        operator: its name.
        case: the size, in words.
        direction: forward or backward.
        by: a provider or a peer.
        ours: true if it is the provider that training would choose.
        tokens: N.
        width: D.
        rows: rows of the modulation, or 1.
        milliseconds: the median.
        of_copy: bytes that one pass must move, over the time, over the bandwidth of a copy.
        same_bits: true if repeated runs gave equal bits; None: not tried.
    """

    operator: str
    case: str
    direction: Direction
    by: str
    ours: bool
    tokens: int
    width: int
    rows: int
    milliseconds: float
    of_copy: float
    same_bits: bool | None = None


class Goal(NamedTuple):
    """A goal and its worst row.

    Attributes:
        aim: aim in words.
        least: smallest sufficient value.
        reached: value of the worst of its rows; None without rows.
        where: size of that row.
    """

    aim: str
    least: float
    reached: float | None
    where: str | None

    @property
    def met(self) -> bool | None:
        """True if the goal is reached; None without a measurement."""
        return None if self.reached is None else self.reached >= self.least


SHARES: dict[tuple[str, Direction], tuple[float, float | None]] = {
    ("layer_norm_modulate", "forward"): (0.92, 0.80),
    ("layer_norm_modulate", "backward"): (0.85, 0.70),
    ("gate_residual_norm_modulate", "forward"): (0.90, None),
    ("gate_residual_norm_modulate", "backward"): (0.82, None),
    ("qk_norm", "forward"): (0.90, None),
    ("qk_norm", "backward"): (0.82, None),
}
"""Of a copy, of large tensors and of 8k x 1536."""
FP32, BF16, COMPILED = "fp32 chain", "bf16 chain", "torch.compile"


def goals(rows: Sequence[GoalRow], paper_case: str) -> list[Goal]:
    """Return every goal of the kernels with the value of its worst row.

    Args:
        rows: all rows of a run.
        paper_case: `GoalRow.case` of AdaptiveLoad's largest shape, in float32.
    """
    # Rows by who made them and by size, since goals are about some of them.
    theirs = {(row.operator, row.case, row.direction, row.by): row.milliseconds for row in rows}
    ours = [row for row in rows if row.ours]
    large = [row for row in ours if row.tokens * row.width >= LARGE and row.case != paper_case]
    small = [row for row in ours if (row.tokens, row.width) == (8192, 1536)]
    paper = [row for row in ours if row.case == paper_case and row.operator == "layer_norm_modulate"]
    forward, backward = ([row for row in ours if row.direction == way] for way in ("forward", "backward"))

    def faster_than(peer: str, among: Iterable[GoalRow]) -> list[Reached]:
        pairs = ((theirs.get((row.operator, row.case, row.direction, peer)), row) for row in among)
        return [(time / row.milliseconds, row.case) for time, row in pairs if time is not None]

    # Share of the bandwidth of a copy, by operator and direction.
    all_goals = []
    for (operator, direction), (at_large, at_small) in SHARES.items():
        about = f"{operator} {direction}: of a copy"
        for min_share, where, among in ((at_large, "N D >= 50 M", large), (at_small, "8k x 1536", small)):
            mine = [row for row in among if (row.operator, row.direction) == (operator, direction)]
            if min_share is not None:
                all_goals.append(
                    _goal(f"{about}, {where}", min_share, [(row.of_copy, row.case) for row in mine])
                )
    # Speed beside other implementations.
    for direction, min_share in (("forward", 7), ("backward", 4)):
        among = [row for row in large if row.direction == direction]
        words = f"{direction}: times as fast as the fp32 chain, N D >= 50 M"
        all_goals.append(_goal(words, min_share, faster_than(FP32, among)))
    among = [row for row in ours if row.tokens >= 1000]
    all_goals.append(_goal("times as fast as the bf16 chain, N >= 1k", 1, faster_than(BF16, among)))
    all_goals.append(_goal("forward: times as fast as torch.compile", 1, faster_than(COMPILED, forward)))
    words = "backward: times as fast as torch.compile, several rows of modulation"
    among = [row for row in backward if row.rows > 1]
    all_goals.append(_goal(words, 1.4, faster_than(COMPILED, among)))
    for direction, limit in (("forward", 0.40), ("backward", 0.66)):
        times = [(limit / row.milliseconds, row.case) for row in paper if row.direction == direction]
        all_goals.append(_goal(f"{direction}, the paper's shape: {limit} ms over its time", 1, times))
    # Equal bits on every run.
    alike = [(float(row.same_bits), row.case) for row in backward if row.same_bits is not None]
    return [*all_goals, _goal("backward: equal bits on every run", 1, alike)]


def _goal(aim: str, min_share: float, reached: list[Reached]) -> Goal:
    worst, where = min(reached, default=(None, None))
    return Goal(aim, min_share, worst, where)
