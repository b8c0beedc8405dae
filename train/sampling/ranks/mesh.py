"""Grid of the ranks that sample."""

import math
from dataclasses import dataclass, fields

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.parallel.rank_grid import CONTEXT, GridRanks, RankGrid
from reelweave.train.sampling.config import SampleLayoutConfig

VIDEO = ("cfg", "lp", *CONTEXT)
"""Dimensions of one video: ranks along them make it together."""


@dataclass(frozen=True)
class SamplingMesh(RankGrid):
    """Degrees of sampling; the last dimension varies fastest, so that ranks which exchange most are adjacent.

    Attributes:
        prompts: number of groups of ranks that make different videos.
        cfg: number of groups that share the passes of guidance.
        lp: number of groups that divide the latents approximately (Latent Parallelism).
        ring: number of context-parallel ranks that pass blocks.
        ulysses: number of context-parallel ranks that exchange heads.
    """

    prompts: int = 1
    cfg: int = 1
    lp: int = 1
    ring: int = 1
    ulysses: int = 1

    @classmethod
    def of(cls, config: SampleLayoutConfig, world_size: int) -> "SamplingMesh":
        """Return the grid of a configuration on a number of ranks.

        Raises:
            UsageError: the degrees do not multiply to them.
        """
        degrees = {field.name: getattr(config, field.name) for field in fields(cls)}
        fixed = math.prod(degree for degree in degrees.values() if degree != "rest")
        rest, over = divmod(world_size, fixed)
        if over or (rest > 1 and "rest" not in degrees.values()):
            layout = " x ".join(f"{name}={degree}" for name, degree in degrees.items() if degree != 1)
            verb = "divide" if "rest" in degrees.values() else "multiply to"
            raise UsageError(
                f"layout {layout or 'of one rank'} must {verb} the {world_size} ranks of this run, and makes {fixed};"
                f" take degrees among the divisors of {world_size} ({_divisors(world_size)}),"
                " or start another number of ranks"
            )
        mesh = cls(**{name: rest if degree == "rest" else degree for name, degree in degrees.items()})
        if config.vae_ranks is not None and config.vae_ranks > mesh.degree(VIDEO):
            raise UsageError(
                f"layout vae_ranks={config.vae_ranks}: only {mesh.degree(VIDEO)} ranks make a video together;"
                f" take 1 to {mesh.degree(VIDEO)}"
            )
        return mesh


class SamplingRanks(GridRanks[SamplingMesh]):
    """Processes that sample, in their grid, seen from one of them."""

    @property
    def video(self) -> World:
        """Ranks that make the same videos as this one."""
        return self.along(*VIDEO)

    @property
    def number(self) -> int:
        """Index of this rank's group of prompts."""
        return self.world.rank // self.mesh.degree(VIDEO)


def _divisors(size: int) -> str:
    return ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
