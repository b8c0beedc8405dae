"""Groups of ranks that make different videos at the same time."""

from dataclasses import dataclass

from reelweave.train.distributed.world import World
from reelweave.train.parallel.mesh import DATA, MODEL, SUMMED, Ranks
from reelweave.train.sampling.ranks.mesh import VIDEO, SamplingRanks


@dataclass(frozen=True, eq=False)
class VideoGroups:
    """Groups of ranks, seen from one of them.

    Attributes:
        world: all ranks.
        video: ranks of this one's group, which make a video together.
        number: number of this group.
        count: number of groups.
        degrees: degrees of the layout by name.
        lockstep: ranks that gather weights in every pass, so that all make equally many; None: groups are independent.
    """

    world: World
    video: World
    number: int
    count: int
    degrees: dict[str, int]
    lockstep: World | None = None

    @classmethod
    def of_sampling(cls, ranks: SamplingRanks) -> "VideoGroups":
        """Return the groups of a sampling layout."""
        degrees = {name: getattr(ranks.mesh, name) for name in ("prompts", *VIDEO)}
        return cls(ranks.world, ranks.video, ranks.number, ranks.mesh.prompts, degrees)

    @classmethod
    def of_training(cls, ranks: Ranks, sharded: bool) -> "VideoGroups":
        """Return the groups of a training layout: ranks with the same samples share a video."""
        mesh = ranks.mesh
        groups = mesh.partition(MODEL)
        index = next(n for n, group in enumerate(groups) if ranks.world.rank in group)
        degrees = {"prompts": len(groups), "cfg": 1, "lp": 1}
        degrees |= {name: getattr(mesh, name) for name in (*MODEL, *DATA)}
        lockstep = ranks.along(*SUMMED) if sharded else None
        return cls(ranks.world, ranks.along(*MODEL), index, len(groups), degrees, lockstep)

    def missing(self, videos: int) -> int:
        """Return how many videos to make and drop, to match other groups' numbers; a collective of all ranks."""
        return 0 if self.lockstep is None else self.lockstep.largest(videos) - videos
