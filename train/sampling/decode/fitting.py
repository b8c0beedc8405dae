"""Decoder that keeps its memory: smaller tiles where those of the tokenizer do not fit."""

from dataclasses import dataclass, field, replace

import torch

from reelweave.train.sampling.decode.budget import DecodePlan, free_bytes, plan_decode
from reelweave.train.sampling.decode.tiled import TiledDecoder


@dataclass(frozen=True, eq=False)
class FittingDecoder:
    """`reelweave.train.sampling.decode.decoder.GroupDecoder` within a budget of memory.

    Attributes:
        tiled: decoder over the ranks of a video, with the tokenizer's own tiles.
        budget_bytes: memory of the first rank for a decode; None: what is free on the GPU, unlimited on a CPU.
    """

    tiled: TiledDecoder
    budget_bytes: int | None = None
    _plans: dict[tuple[tuple[int, ...], int, int | None], DecodePlan] = field(
        default_factory=dict, repr=False
    )

    def plan(
        self, size: tuple[int, int, int], videos: int = 1, budget_bytes: int | None = None
    ) -> DecodePlan:
        """Return the tiles of a decode, and its peak, predicted once for each size and budget.

        Args:
            size: latent frames, rows and columns.
            videos: number of videos in one decode.
            budget_bytes: memory for it; None: unlimited.

        Raises:
            UsageError: no tiles keep the budget.
        """
        plan = self._plan(size, videos, None)
        if budget_bytes is None or plan.peak_bytes <= budget_bytes:
            return plan
        return self._plan(size, videos, budget_bytes)

    def fits(self, size: tuple[int, int, int], free_bytes: int | None, videos: int = 1) -> bool:
        """Return whether a decode in the tiles that it would have with all memory fits what is free now.

        Args:
            size: latent frames, rows and columns.
            free_bytes: memory that is free on this rank; None: unlimited.
            videos: number of videos in one decode.
        """
        return free_bytes is None or self.plan(size, videos, self.budget_bytes).peak_bytes <= free_bytes

    def _plan(self, size: tuple[int, int, int], videos: int, budget_bytes: int | None) -> DecodePlan:
        key = (size, videos, budget_bytes)
        if key not in self._plans:
            tiled = self.tiled
            self._plans[key] = plan_decode(tiled.tokenizer, size, budget_bytes, videos, tiled.decoding_ranks)
        return self._plans[key]

    def __call__(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        """Decode; a collective with equal arguments.

        Raises:
            UsageError: no tiles keep the budget.
            RunError: a rank failed.
        """
        budget = self.budget_bytes
        if budget is None and (free := free_bytes(latents_BCTHW.device)) is not None:
            budget = -self.tiled.world.largest(-free)
        if budget is None:
            return self.tiled(latents_BCTHW)
        videos, _, T, H, W = latents_BCTHW.shape
        plan = self.plan((T, H, W), videos, budget)
        return replace(self.tiled, layout=plan.layout)(latents_BCTHW)
