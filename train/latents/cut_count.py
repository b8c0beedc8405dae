"""Count of captions that encoders of text cut off."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CutCount:
    """Number of captions whose contexts are stored, and of those that an encoder of text cuts off.

    Attributes:
        captions: number of captions.
        cut: number of those that are longer than the context.
        cut_pooled: number of those that are longer than what the encoder of pooled captions reads.
    """

    captions: int = 0
    cut: int = 0
    cut_pooled: int = 0

    def __add__(self, other: "CutCount") -> "CutCount":
        return CutCount(
            self.captions + other.captions, self.cut + other.cut, self.cut_pooled + other.cut_pooled
        )
