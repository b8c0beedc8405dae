"""What context-parallel self-attention sends: bytes of one rank for one layer, counted without a network."""

from dataclasses import dataclass

from train.parallel.context.cut import Cut
from train.parallel.context.slices import Slices


@dataclass(frozen=True)
class AttentionSize:
    """A layer's queries, keys and values before they are cut.

    Attributes:
        batch: samples B.
        heads: H.
        width: of a head.
        value_bytes: of an activation.
        sum_bytes: of the type that gradients travel in round a ring.
    """

    batch: int
    heads: int
    width: int
    value_bytes: int
    sum_bytes: int = 4

    @property
    def token(self) -> int:
        """Values of one token's queries, or keys, or values."""
        return self.batch * self.heads * self.width


def ulysses_bytes(size: AttentionSize, cut: Cut, rank: int) -> tuple[int, int]:
    """What a rank of a Ulysses group sends in forward and in backward.

    Queries, keys and values go out and the outputs of one share of the heads come back; in backward the same
    tensors' gradients go the other way.
    """
    P, L, own = len(cut.lengths), cut.tokens, cut.lengths[rank]
    out = own * (P - 1) * (size.token // P) * size.value_bytes
    back = (L - own) * (size.token // P) * size.value_bytes
    return 3 * out + back, out + 3 * back


def ring_bytes(size: AttentionSize, cut: Cut, rank: int) -> tuple[int, int]:
    """What a rank of a ring sends in forward and in backward.

    Forward: the keys and values of every block but that of the rank it sends to. Backward: these again, and
        the gradients of every block but its own.
    """
    L, own, following = cut.tokens, cut.lengths[rank], cut.lengths[(rank + 1) % len(cut.lengths)]
    forward = 2 * (L - following) * size.token * size.value_bytes
    return forward, forward + 2 * (L - own) * size.token * size.sum_bytes


def slices_bytes(size: AttentionSize, places: Slices, frames: Slices, rank: int) -> int:
    """What a rank sends in forward, and as much in backward, for spatial and temporal attention of one layer.

    Tokens go from where places are whole to where frames are, and what attention makes of them comes back.
    """
    own, wanted = places.owner == rank, frames.owner == rank
    return int((own != wanted).sum()) * size.token * size.value_bytes
