"""Parameter sets of HEVC (ITU-T H.265, 7.3.2), as far as they decide about copies."""

from __future__ import annotations

from dataclasses import dataclass

from reelweave.curate.cut.smart.hevc.units import HEADER_BYTES
from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import without_emulation

MOST_VIDEO_IDS = MOST_SEQUENCE_IDS = 16
MOST_PICTURE_IDS = 64
_READ_BYTES = 4096  # of a set, in which all lies that is read of it
_PROFILE_BYTES = 12  # of profile, tier and level of the whole stream
_EXTENDED_ASPECT = 255
_MOST_SETS_OF_REFERENCES, _MOST_REFERENCES = 64, 16
_INTERLACED = 0x40  # general_interlaced_source_flag, behind profile and compatibility


@dataclass(frozen=True)
class VideoSet:
    """Fields of a video parameter set: its id, and the number of its layers."""

    id: int
    layers: int


@dataclass(frozen=True)
class SequenceSet:
    """Fields of a sequence parameter set that decide about copies.

    Attributes:
        id: Its id.
        video_id: Id of its video parameter set.
        profile_level: Profile, tier and level, 12 bytes as stored.
        sub_layers: Number of temporal sub-layers.
        nested: True where decoders may change to a higher sub-layer anywhere.
        chroma: chroma_format_idc.
        luma_bits: Bits per sample of luma.
        chroma_bits: Bits per sample of chroma.
        crop_left: Columns of chroma that are cut off at the left.
        fields: True where pictures are fields or from interlaced video.
        window: True where players are asked to show a part of the pictures.
        chroma_location: Location of chroma samples; None where it does not say.
        reordered: Frames at most that lie before one in coding and behind it on screen.
    """

    id: int
    video_id: int
    profile_level: bytes
    sub_layers: int
    nested: bool
    chroma: int
    luma_bits: int
    chroma_bits: int
    crop_left: int
    fields: bool
    window: bool
    chroma_location: int | None
    reordered: int

    @property
    def profile(self) -> int:
        """Value of general_profile_idc."""
        return self.profile_level[0] & 31


def video_set(unit: bytes) -> VideoSet:
    """Read a video parameter set.

    Raises:
        ParameterError: It is cut off.
    """
    bits = set_bits(unit)
    set_id = bits.take(4)
    bits.take(2)
    return VideoSet(set_id, bits.take(6) + 1)


def sequence_set(unit: bytes) -> SequenceSet:
    """Read a sequence parameter set.

    Raises:
        ParameterError: It is cut off or damaged.
    """
    bits = set_bits(unit)
    video_id, sub_layers, nested = bits.take(4), bits.take(3) + 1, bool(bits.take())
    profile_level = _take_profile(bits, sub_layers)
    set_id = bits.unsigned()
    if set_id >= MOST_SEQUENCE_IDS:
        raise ParameterError("a parameter set has no valid id")
    chroma = bits.unsigned()
    if chroma == 3:
        bits.take()
    bits.unsigned()
    bits.unsigned()
    crop_left = 0
    if bits.take():
        crop_left = bits.unsigned()
        for _ in range(3):
            bits.unsigned()
    luma_bits, chroma_bits = 8 + bits.unsigned(), 8 + bits.unsigned()
    order_bits = 4 + bits.unsigned()
    reordered = 0
    for _ in range(sub_layers if bits.take() else 1):
        _, reordered, _ = bits.unsigned(), bits.unsigned(), bits.unsigned()
    for _ in range(6):  # sizes of blocks and depths of trees
        bits.unsigned()
    _skip_tools(bits)
    _skip_references(bits, order_bits)
    bits.take(2)
    has_fields, has_window, chroma_location = _take_usability(bits) if bits.take() else (False, False, None)
    return SequenceSet(
        set_id,
        video_id,
        profile_level,
        sub_layers,
        nested,
        chroma,
        luma_bits,
        chroma_bits,
        crop_left,
        has_fields or bool(profile_level[5] & _INTERLACED),
        has_window,
        chroma_location,
        reordered,
    )


def picture_set_ids(unit: bytes) -> tuple[int, int]:
    """Return the id of a picture parameter set, and that of its sequence parameter set."""
    bits = set_bits(unit)
    picture_id, sequence_id = bits.unsigned(), bits.unsigned()
    if picture_id >= MOST_PICTURE_IDS or sequence_id >= MOST_SEQUENCE_IDS:
        raise ParameterError("a parameter set has no valid id")
    return picture_id, sequence_id


def set_bits(unit: bytes) -> Bits:
    """Return the first bits of a set, behind its header."""
    return Bits(without_emulation(unit[HEADER_BYTES:_READ_BYTES]))


def _take_profile(bits: Bits, sub_layers: int) -> bytes:
    general = bits.take(8 * _PROFILE_BYTES).to_bytes(_PROFILE_BYTES, "big")
    if sub_layers > 1:
        present = [(bits.take(), bits.take()) for _ in range(8)][: sub_layers - 1]
        for has_profile, has_level in present:
            bits.take(88 * has_profile + 8 * has_level)
    return general


def _skip_tools(bits: Bits) -> None:
    """Skip scaling lists, and what is said of asymmetric blocks, offsets and PCM."""
    if bits.take() and bits.take():
        for size in range(4):
            for _ in range(2 if size == 3 else 6):
                if not bits.take():
                    bits.unsigned()
                    continue
                if size > 1:
                    bits.signed()
                for _ in range(min(64, 1 << (4 + 2 * size))):
                    bits.signed()
    bits.take(2)
    if bits.take():
        bits.take(8)
        bits.unsigned()
        bits.unsigned()
        bits.take()


def _skip_references(bits: Bits, order_bits: int) -> None:
    """Skip the sets of pictures that are referred to (7.3.7)."""
    count = bits.unsigned()
    if count > _MOST_SETS_OF_REFERENCES:
        raise ParameterError("a parameter set is damaged")
    before = 0  # pictures of the set before
    for at in range(count):
        if at and bits.take():
            bits.take()
            bits.unsigned()
            before = sum(bool(bits.take() or bits.take()) for _ in range(before + 1))
        else:
            before = bits.unsigned() + bits.unsigned()
            if before > _MOST_REFERENCES:
                raise ParameterError("a parameter set is damaged")
            for _ in range(before):
                bits.unsigned()
                bits.take()
    if bits.take():
        for _ in range(min(bits.unsigned(), 33)):
            bits.take(order_bits + 1)


def _take_usability(bits: Bits) -> tuple[bool, bool, int | None]:
    """Return whether pictures are fields, whether a part is shown, and the location of chroma (annex E)."""
    if bits.take() and bits.take(8) == _EXTENDED_ASPECT:
        bits.take(32)
    if bits.take():
        bits.take()
    if bits.take():
        bits.take(4)
        if bits.take():
            bits.take(24)
    chroma_location = None
    if bits.take():
        chroma_location = bits.unsigned()
        bits.unsigned()
    bits.take()
    fields = bool(bits.take())
    bits.take()
    return fields, bool(bits.take()), chroma_location
