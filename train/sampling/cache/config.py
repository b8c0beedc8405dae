"""Configuration of caches; importing it loads no torch."""

from typing import Literal

from pydantic import Field

from reelweave.loader.settings import Settings


class BlockCacheConfig(Settings):
    """Reuse of what blocks add, between evaluations of the model; approximate."""

    kind: Literal["first_block", "teacache"] = Field(
        "first_block",
        description="watched signal: the change made by the first block, or its modulated input (models of ours)",
    )
    threshold: float = Field(
        0.1,
        ge=0,
        description="relative change, |new - old| / |old|, below which blocks are skipped; 0 skips none",
    )
    min_psnr_db: float = Field(
        30.0,
        description="quality gate: PSNR to the same video without a cache, below which the cache is not used",
    )
