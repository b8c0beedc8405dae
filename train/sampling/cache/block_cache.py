"""Cache of what a model's blocks add to their input, decided anew at every evaluation.

`first_block` compares what the first block adds with the last computed evaluation, and skips the others (first-block
cache of ParaAttention). `teacache` adds up an estimate of the change since then, and skips all. It estimates from the
input of the first block, modulated by the time. Source: Liu et al., "Timestep Embedding Tells: It's Time to Cache for
Video Diffusion Model", 2025, eq. 4 to 6.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.models.adaln import modulate
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT
from reelweave.train.models.mmdit import JointBlock
from reelweave.train.sampling.cache.config import BlockCacheConfig

_STREAMS = ("hidden_states", "encoder_hidden_states")
"""Keywords of the streams that blocks of diffusers return."""


@dataclass
class _Branch:
    """State of one guidance branch.

    Attributes:
        probe: values that the next evaluation is compared with.
        added: addition of the skipped blocks to each stream when they last ran.
        distance: estimated change since then.
        moved: relative change of the probe at the last evaluation.
    """

    probe: torch.Tensor | None = None
    added: tuple[torch.Tensor, ...] = ()
    distance: float = 0.0
    moved: float | None = None


class BlockCache:
    """Cache around the blocks of a model, on the ranks that share its sequences.

    All ranks decide alike: changes are sums over the tokens of all ranks, and all compute if one does.

    Args:
        model: model with at least two blocks.
        config: kind and threshold.
        ranks: ranks that hold parts of the same tokens.
        polynomial: coefficients from the probe's relative change to the expected change of what blocks add, highest
            power first; see `fit`.

    Attributes:
        config: kind and threshold.
        hits: number of evaluations whose blocks were skipped.
        evaluations: number of evaluations.
        changes: relative change of the probe, and of what blocks add, at every evaluation that was computed
            directly behind another one.

    Raises:
        UsageError: the model has one block, or `teacache` does not know its modulation.
    """

    def __init__(
        self,
        model: Denoiser,
        config: BlockCacheConfig,
        ranks: World,
        polynomial: Sequence[float] = (1.0, 0.0),
    ) -> None:
        if len(model.repeated()) < 2:
            raise UsageError("a cache skips blocks behind the first, and this model has one: leave it out")
        if config.kind == "teacache" and not isinstance(model, DiT):
            raise UsageError("cache kind teacache is for models of ours: take first_block")
        self.hits, self.evaluations = 0, 0
        self.changes: list[tuple[float, float]] = []
        self.config, self._model, self._ranks = config, model, ranks
        self._polynomial = tuple(polynomial)
        self._branches: dict[Hashable, _Branch] = {}

    def clear(self) -> None:
        """Forget what blocks added; called before every video, and where weights change."""
        self._branches.clear()

    def fit(self, degree: int = 4) -> tuple[float, ...]:
        """Fit the polynomial of `teacache` to `changes` of a run that skipped nothing (eq. 6).

        Raises:
            UsageError: there are too few evaluations.
        """
        if len(self.changes) <= degree:
            raise UsageError(f"{len(self.changes)} evaluations are too few to fit a cache: take more steps")
        probes, added = np.array(self.changes).T
        return tuple(np.polynomial.Polynomial.fit(probes, added, degree).convert().coef[::-1].tolist())

    @contextmanager
    def evaluation(self, branch: Hashable) -> Iterator[None]:
        """Run the blocks through the cache, for one evaluation.

        Args:
            branch: guidance branch; branches reuse nothing of each other.
        """
        self.evaluations += 1
        blocks = self._model.repeated()
        calls = _Evaluation(self._branches.setdefault(branch, _Branch()), self, len(blocks) - 1)
        before = [block.__dict__.get("forward") for block in blocks]
        try:
            for index, block in enumerate(blocks):
                block.forward = calls.around(block, index)
            yield
        finally:
            for block, forward in zip(blocks, before, strict=True):
                del block.__dict__["forward"]
                if forward is not None:
                    block.forward = forward
        self.hits += calls.hit

    def decide(self, branch: _Branch, probe: torch.Tensor) -> bool:
        """Return True if blocks are skipped, the same on all ranks; a collective."""
        moved = self._change(branch.probe, probe)
        accumulates = self.config.kind == "teacache"
        distance = moved
        if accumulates and math.isfinite(moved):
            distance = branch.distance + abs(float(np.polyval(self._polynomial, moved)))
        misses = not (branch.added and distance < self.config.threshold)  # also if it is not a number
        hit = not self._ranks.largest(int(misses))
        branch.distance = distance if hit else 0.0
        branch.moved = moved if branch.probe is not None else None
        if accumulates or not hit:
            branch.probe = probe
        return hit

    def keep_change(self, branch: _Branch, added: tuple[torch.Tensor, ...]) -> None:
        """Keep what the blocks added; a collective where the change is recorded."""
        if branch.added and branch.moved is not None and not self.config.threshold:
            self.changes.append((branch.moved, self._change(branch.added[0], added[0])))
        branch.added = added

    def _change(self, before: torch.Tensor | None, after: torch.Tensor) -> float:
        """Return the relative change over all ranks' tokens; infinite without something to compare."""
        if before is None or before.shape != after.shape:
            return float("inf")
        change, size = ((x.abs().sum(dtype=torch.float64).item()) for x in (after - before, before))
        total_change, total_size = self._ranks.sums([change, size])
        return total_change / total_size if total_size else float("inf")


@dataclass
class _Evaluation:
    """Forwards of the blocks during one evaluation."""

    branch: _Branch
    cache: BlockCache
    last: int
    hit: bool = False
    entered: tuple[torch.Tensor, ...] = field(default=())

    def around(self, block: Any, index: int) -> Callable[..., Any]:
        """Return the forward of a block under the cache."""
        original, is_teacache = block.forward, self.cache.config.kind == "teacache"

        def forward(*args: Any, **kwargs: Any) -> Any:
            # TeaCache decides before the first block, first-block cache behind it.
            if index == 0 and is_teacache:
                self.hit = self.cache.decide(self.branch, _modulate_input(block, *args[:3]))
            # A hit skips blocks, and adds at the last one what they changed before.
            if self.hit and (index or is_teacache):
                streams = _streams(args, kwargs, len(self.branch.added))
                if index == self.last:
                    streams = tuple(x + more for x, more in zip(streams, self.branch.added, strict=True))
                return streams if len(streams) > 1 else streams[0]
            # Else blocks run, and what they change is kept for the next hit.
            outputs = original(*args, **kwargs)
            after = outputs if isinstance(outputs, tuple) else (outputs,)
            if index == 0:
                before = _streams(args, kwargs, len(after))
                if not is_teacache:
                    self.hit = self.cache.decide(self.branch, after[0] - before[0])
                self.entered = before if is_teacache else after
            elif index == self.last:
                added = tuple(x - entered for x, entered in zip(after, self.entered, strict=True))
                self.cache.keep_change(self.branch, added)
            return outputs

        return forward


def _streams(args: Sequence[Any], kwargs: dict[str, Any], count: int) -> tuple[torch.Tensor, ...]:
    """Return the streams that a block is called with, by position or by keyword."""
    return tuple(
        args[position] if position < len(args) else kwargs[_STREAMS[position]] for position in range(count)
    )


def _modulate_input(block: Any, x_BLD: torch.Tensor, *conditions: torch.Tensor) -> torch.Tensor:
    """Return the input of the first branch of a block of ours: normalized, scaled and shifted by the time."""
    joint = isinstance(block, JointBlock)
    modulation, condition_BD = (
        (block.video.modulation, conditions[1]) if joint else (block.modulation, conditions[0])
    )
    vectors = modulation(condition_BD)
    shift, scale = vectors.split(x_BLD.shape[2], dim=1)[:2]
    return modulate(x_BLD, shift, scale, None)
