"""Bytes of a step by phase, and what they are with more equal blocks.

Live bytes at any moment of a phase are a constant and a share of what each block adds. So the peak of a phase
is a convex function of the number of equal blocks. Its slope is bounded by all that a block can have alive in
the phase. Where one block more adds as much as this bound, every further one does: few blocks tell the peak
of any number.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Footprint(NamedTuple):
    """Bytes on the rank with the highest peak.

    Attributes:
        state: permanent bytes: weights, gradients, optimizer state, EMA and frozen encoders.
        kept: bytes that the forward of a microbatch saves for its backward.
        passes: peak of forward and backward.
        step: peak including the gradient reduction.
        update: peak of the optimizer's update.
        ahead: bytes of the next microbatch's pixels, which come while this one is computed
            (`reelweave.train.models.transfer`).
    """

    state: int
    kept: int
    passes: int
    step: int
    update: int
    ahead: int = 0

    @property
    def peak(self) -> int:
        """Peak bytes of the whole step."""
        return max(self.step, self.update) + self.ahead


class StepPhases(NamedTuple):
    """Bytes of a step, by phase.

    Attributes:
        state: permanent bytes.
        held: gradients that earlier microbatches of the step leave beside the state.
        inside: bytes alive at the end of the forward: what it saves, and casts of weights that autocast keeps.
        kept: bytes that it saves for the backward.
        text: peak while the text is encoded.
        forward: peak of the forward.
        backward: peak of the backward.
        sums: peak of what the gradient sum does behind the backward.
        update: peak of the optimizer's update.
        ahead: bytes of the next microbatch's pixels.
    """

    state: int
    held: int
    inside: int
    kept: int
    text: int
    forward: int
    backward: int
    sums: int
    update: int
    ahead: int

    def footprint(self, tokenizer: int = 0, encoding: int = 0) -> Footprint:
        """Return the peaks of the whole step.

        Args:
            tokenizer: bytes of a tokenizer's weights that the state lacks.
            encoding: bytes that it adds while it encodes.
        """
        encodes = self.state + self.held + tokenizer + encoding
        passes = max(encodes, tokenizer + max(self.text, self.forward, self.backward))
        return Footprint(
            state=self.state + tokenizer,
            kept=self.kept,
            passes=passes,
            step=max(passes, self.sums + tokenizer),
            update=self.update + tokenizer,
            ahead=self.ahead,
        )


def extrapolate_blocks(
    base: StepPhases, runs: Sequence[tuple[int, StepPhases, StepPhases]]
) -> StepPhases | None:
    """Return the phases of a model with more equal blocks; None if the measured ones do not tell them.

    Args:
        base: phases of the fewest blocks.
        runs: each run's excess of equal blocks over the fewest, and phases with one and two more.
    """
    total = base
    for more, with_one, two in runs:
        added = StepPhases(*(b - a for a, b in zip(base, with_one, strict=True)))
        common = added.state + added.held
        bounds = (common + added.inside, common + added.kept)
        if added != tuple(b - a for a, b in zip(with_one, two, strict=True)):
            return None
        if (added.forward, added.backward) != bounds or added.sums < added.state:
            return None
        total = StepPhases(*(phase + more * each for phase, each in zip(total, added, strict=True)))
    return total
