"""Codings whose packets are copied smart: what is read of their packets and sets, and how both parts of a clip join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Header:
    """Parameter sets of a container.

    Attributes:
        sets: The sets as NAL units.
        prefix: Bytes of the length prefixes of packets; None for start codes.
        beside: NAL units beside the sets that describe all pictures.
        fault: Reason why nothing of the source is copied, or None.
    """

    sets: tuple[bytes, ...]
    prefix: int | None
    beside: tuple[bytes, ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class SetsOf:
    """Parameter sets in force at a packet.

    Attributes:
        sets: The sets as NAL units.
        encoder_ids: Ids that they leave for those of an encoder.
        fault: Reason why packets of these sets are not copied, or None.
        bits: Bits per sample.
        chroma_location: Location of chroma samples, as an encoder states it; None where they do not say.
        has_pyramid: False where no frame with B-frames around it may be one, so that it is not moved farther.
    """

    sets: tuple[bytes, ...]
    encoder_ids: tuple[int, ...] = ()
    fault: str | None = None
    bits: int = 8
    chroma_location: int | None = None
    has_pyramid: bool = True


@dataclass(frozen=True)
class PacketFacts:
    """Facts of a packet by its NAL units.

    Attributes:
        is_entry: True where a copied run may begin with it.
        is_reset: True for an entry that ends all references, of packets behind it too.
        is_leading: True for a picture that is shown before the entry that it follows.
        is_whole: True for exactly one picture.
        ends: True where its coded sequence ends with it.
        has_sets: True where it holds parameter sets.
        fault: Reason why nothing of its source is copied, or None.
    """

    is_entry: bool = False
    is_reset: bool = False
    is_leading: bool = False
    is_whole: bool = True
    ends: bool = False
    has_sets: bool = False
    fault: str | None = None


class Coding(Protocol):
    """Codec whose packets are copied.

    Attributes:
        name: Name of the codec in FFmpeg.
        encoder: Name of the encoder of the frames beside copies.
    """

    name: str
    encoder: str

    def header(self, header: bytes) -> Header:
        """Read the header that a container states; it may be empty.

        Raises:
            ParameterError: It holds too many NAL units.
        """

    def look(self, units: Sequence[bytes]) -> PacketFacts:
        """Return the facts of a packet of these NAL units."""

    def origin_fault(self, packet: bytes, /) -> str | None:
        """Return why nothing is copied of a film, by one of its first packets, or None."""

    def set_key(self, unit: bytes) -> tuple[int, int] | None:
        """Return type and id of a parameter set, or None for other NAL units.

        Raises:
            ParameterError: The set cannot be read.
        """

    def sets_of(self, sets: tuple[bytes, ...]) -> SetsOf:
        """Look at parameter sets that are in force together."""

    def record(self, sets: Sequence[bytes]) -> bytes:
        """Return the record of a sample entry for parameter sets whose ids differ."""

    def sample(self, units: Sequence[bytes]) -> bytes:
        """Return the sample of MP4 for a copied packet."""

    def first_sample(self, units: Sequence[bytes], beside: Sequence[bytes], /) -> bytes:
        """Return the sample of MP4 for the first packet of a copied run.

        Args:
            units: Its NAL units.
            beside: NAL units of the container's header that describe all pictures.
        """

    def edge_options(self, values: Mapping[str, str], sets: SetsOf, /) -> dict[str, str]:
        """Return the encoder's options beside copies.

        Args:
            values: Its options for whole clips.
            sets: Parameter sets of the copies.
        """

    def edge_sets(self, header: bytes, sets: SetsOf, /) -> list[bytes]:
        """Return the parameter sets of the encoder, with the ids that those of the copies leave."""

    def edge_sample(self, packet: bytes, sets: SetsOf, /) -> bytes:
        """Return the sample of MP4 for an encoded packet."""
