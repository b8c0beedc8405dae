"""Communication volume of context-parallel self-attention per rank and layer, computed without a network."""

from dataclasses import dataclass

from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.slices import SliceSharding


@dataclass(frozen=True)
class AttentionSize:
    """Size of a layer's queries, keys and values before sharding.

    Attributes:
        batch: number of samples, B.
        heads: number of heads, H.
        width: width of a head.
        value_bytes: bytes of an activation.
        sum_bytes: bytes of a gradient that travels around a ring.
    """

    batch: int
    heads: int
    width: int
    value_bytes: int
    sum_bytes: int = 4

    @property
    def token(self) -> int:
        """Number of values in one token's queries, keys or values."""
        return self.batch * self.heads * self.width


def ulysses_bytes(size: AttentionSize, cut: Partition, rank: int) -> tuple[int, int]:
    """Return the bytes that a rank of a Ulysses group sends in forward and in backward.

    Forward sends queries, keys and values, and returns outputs of one share of the heads; backward reverses
    both with gradients.
    """
    P, L, local_tokens = len(cut.lengths), cut.tokens, cut.lengths[rank]
    out = local_tokens * (P - 1) * (size.token // P) * size.value_bytes
    back = (L - local_tokens) * (size.token // P) * size.value_bytes
    return 3 * out + back, out + 3 * back


def ring_bytes(size: AttentionSize, cut: Partition, rank: int) -> tuple[int, int]:
    """Return the bytes that a rank of a ring sends in forward and in backward.

    Forward: keys and values of every block but that of the receiving rank. Backward: these again, and the
    gradients of every block but its own.
    """
    L, local_tokens, following = cut.tokens, cut.lengths[rank], cut.lengths[(rank + 1) % len(cut.lengths)]
    forward = 2 * (L - following) * size.token * size.value_bytes
    return forward, forward + 2 * (L - local_tokens) * size.token * size.sum_bytes


def slices_bytes(size: AttentionSize, by_place: SliceSharding, frames: SliceSharding, rank: int) -> int:
    """Return the bytes that a rank sends in forward, and again in backward, for one spatial-temporal layer.

    Tokens move from shards by place to shards by frame, and attention outputs move back.
    """
    has_place, has_frame = by_place.owner == rank, frames.owner == rank
    return int((has_place != has_frame).sum()) * size.token * size.value_bytes
