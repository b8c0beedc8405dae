"""Jagged slices: frames or places divided into slices of any sizes, and each slice over the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reelweave.loader.errors import UsageError
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.sampling.scalefusion.schedule import LayerKind, Slicing


@dataclass(frozen=True)
class JaggedAxis:
    """Division of an axis of the token grid into slices, and of each slice over the ranks.

    Attributes:
        cells: adjacent parts of the axis, slice after slice, rank after rank within; 0 is allowed.
        ranks: number of ranks, P.
    """

    cells: Partition
    ranks: int

    @classmethod
    def even(cls, length: int, slices: int, ranks: int) -> "JaggedAxis":
        """Divide an axis whose length neither slices nor ranks need divide.

        What is left over in a slice goes to ranks far apart, which probably are on different nodes. It goes
        on after those of the slice before, so the ranks' totals differ by at most one. A rank may have
        nothing of a slice.
        """
        bits = max(1, (ranks - 1).bit_length())
        spread = sorted(range(ranks), key=lambda rank: f"{rank:0{bits}b}"[::-1])
        offsets = {rank: index for index, rank in enumerate(spread)}
        lengths: list[int] = []
        first = 0
        for size in Partition.even(length, slices).lengths:
            base, rest = divmod(size, ranks)
            lengths += [base + ((offsets[rank] - first) % ranks < rest) for rank in range(ranks)]
            first += rest
        return cls(Partition(tuple(lengths)), ranks)

    @cached_property
    def slices(self) -> Partition:
        """The slices, of all ranks together."""
        return self.cells.join(self.ranks)

    def part(self, slice_index: int, rank: int) -> slice:
        """Return a rank's part of a slice."""
        return self.cells.part(slice_index * self.ranks + rank)

    def counts(self, slice_index: int) -> Sequence[int]:
        """Return the length of each rank's part of a slice."""
        return self.cells.lengths[slice_index * self.ranks : (slice_index + 1) * self.ranks]

    def total(self, rank: int) -> int:
        """Return the length of all of a rank's parts."""
        return sum(self.cells.lengths[rank :: self.ranks])


@dataclass(frozen=True)
class TokenDivision:
    """Division of a video's tokens over slices and ranks.

    Attributes:
        frames: division along time, of the slices of spatial layers.
        positions: division along the positions in a frame, of the slices of temporal layers and of the input.
    """

    frames: JaggedAxis
    positions: JaggedAxis

    @classmethod
    def of(cls, frames: int, positions: int, slicing: Slicing, ranks: int) -> "TokenDivision":
        """Divide a video's latents into slices.

        Raises:
            UsageError: there are more slices than frames or places, or the numbers make no schedule.
        """
        slicing.check()
        for name, letter, length, count in (
            ("frames", "T", frames, slicing.temporal),
            ("places", "S", positions, slicing.spatial),
        ):
            if count > length:
                raise UsageError(
                    f"ScaleFusion cannot cut {length} {name} of tokens into N_{letter}={count} slices: lower"
                    f" N_{letter}"
                )
        return cls(
            JaggedAxis.even(frames, slicing.temporal, ranks),
            JaggedAxis.even(positions, slicing.spatial, ranks),
        )

    @property
    def ranks(self) -> int:
        return self.frames.ranks

    def cut(self, kind: LayerKind) -> JaggedAxis:
        """Return the axis that a kind's layers are cut along; they have the other one whole."""
        return self.frames if kind == "spatial" else self.positions

    def whole(self, kind: LayerKind) -> JaggedAxis:
        """Return the axis that each slice of a kind's layers has whole."""
        return self.positions if kind == "spatial" else self.frames

    def layer_tokens(self, kind: LayerKind, rank: int) -> int:
        """Return the number of tokens that a rank sends to others before a whole layer, whatever the slices."""
        receiving = self.cut(kind)
        return (receiving.cells.tokens - receiving.total(rank)) * self.whole(kind).total(rank)


def pass_bytes(division: TokenDivision, rank: int, pairs: int, token_bytes: int, value_bytes: int) -> int:
    """Return the bytes that a rank sends to others in a model pass, with the gathering of its result.

    The lifting of slices changes when these bytes are sent, and slices only by what is left over in them.

    Args:
        division: slices and ranks.
        rank: sender.
        pairs: number of pairs of a spatial and a temporal layer.
        token_bytes: size of a token between layers, of all samples.
        value_bytes: size of a token's predicted values, of all samples.
    """
    between = division.layer_tokens("spatial", rank) + division.layer_tokens("temporal", rank)
    local_tokens = division.frames.cells.tokens * division.positions.total(rank)
    return pairs * between * token_bytes + (division.ranks - 1) * local_tokens * value_bytes
