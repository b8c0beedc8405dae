"""Parameter sets of H.264 (ITU-T H.264, 7.3.2), and the record that holds those of a clip (ISO/IEC 14496-15)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reelweave.curate.cut.smart.bits import units_of
from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.h264_sets import skip_order, skip_scaling
from reelweave.loader.dataset.samples.frames.nal_units import prefix_bytes, record_units, without_emulation

IDR, SEI, SPS, PPS, FILLER = 5, 6, 7, 8, 12
"""Values of nal_unit_type, table 7-1."""
LAYERED = frozenset({2, 3, 4, 13, 14, 15, 19, 20, 21})
"""Types of data partitions, auxiliary pictures, and layers of SVC and MVC, which are not copied."""

MOST_IDS = 32
"""Ids that a sequence parameter set may have."""
_MOST_PICTURE_IDS = 256
_MOST_SEQUENCES, _MOST_PICTURES, _MOST_SET_BYTES = 31, 255, 65535  # of a record
_READ_BYTES = 4096  # of a set, in which all lies that is read of it

_HIGH = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})


@dataclass(frozen=True)
class SequenceSet:
    """Fields of a sequence parameter set that decide about copies.

    Attributes:
        id: Its id.
        profile: profile_idc.
        constraints: Byte of the constraint flags.
        level: level_idc.
        chroma: chroma_format_idc.
        luma_bits: Bits per sample of luma.
        chroma_bits: Bits per sample of chroma.
        frames_only: True where no picture is a field or has pairs of fields.
        lossless: True where pictures may skip the transform.
        crop_left: Columns of chroma that are cut off at the left.
    """

    id: int
    profile: int
    constraints: int
    level: int
    chroma: int
    luma_bits: int
    chroma_bits: int
    frames_only: bool
    lossless: bool = False
    crop_left: int = 0


def sequence_set(unit: bytes) -> SequenceSet:
    """Read a sequence parameter set.

    Args:
        unit: NAL unit with its header byte.

    Raises:
        ParameterError: It is cut off or damaged.
    """
    if len(unit) < 5:
        raise ParameterError("a parameter set is cut off")
    profile, constraints, level = unit[1:4]
    bits = Bits(without_emulation(unit[4:_READ_BYTES]))
    set_id = bits.unsigned()
    if set_id >= MOST_IDS:
        raise ParameterError("a parameter set has no valid id")
    # Only the high profiles say how samples are stored.
    chroma, luma_bits, chroma_bits, lossless = 1, 8, 8, False
    if profile in _HIGH:
        chroma = bits.unsigned()
        if chroma == 3:
            bits.take()
        luma_bits, chroma_bits = 8 + bits.unsigned(), 8 + bits.unsigned()
        lossless = bool(bits.take())
        if bits.take():
            skip_scaling(bits, 8 if chroma != 3 else 12)
    bits.unsigned()
    skip_order(bits)
    bits.unsigned()
    bits.take()
    bits.unsigned()
    bits.unsigned()
    # Behind frame numbers, order, reference frames and size in macroblocks.
    frames_only = bool(bits.take())
    if not frames_only:
        bits.take()
    bits.take()
    # Cropping from the left moves the grid of macroblocks.
    crop_left = bits.unsigned() if bits.take() else 0
    return SequenceSet(
        set_id, profile, constraints, level, chroma, luma_bits, chroma_bits, frames_only, lossless, crop_left
    )


def picture_set_ids(unit: bytes) -> tuple[int, int]:
    """Return the id of a picture parameter set, and that of its sequence parameter set."""
    bits = Bits(without_emulation(unit[1:_READ_BYTES]))
    picture_id, sequence_id = bits.unsigned(), bits.unsigned()
    if picture_id >= _MOST_PICTURE_IDS or sequence_id >= MOST_IDS:
        raise ParameterError("a parameter set has no valid id")
    return picture_id, sequence_id


def kind_of(unit: bytes) -> int:
    """Return the type of a NAL unit, as of table 7-1."""
    return unit[0] & 31


def header_sets(header: bytes) -> tuple[list[bytes], int | None]:
    """Return the parameter sets that a container states, and the bytes of length prefixes of its packets.

    Args:
        header: Extradata: an avcC record, or NAL units with start codes; may be empty.

    Raises:
        ParameterError: It holds too many NAL units.
    """
    prefix = prefix_bytes(header, "h264")
    if prefix is None:
        return [unit for unit in units_of(header, None) if kind_of(unit) in (SPS, PPS)], None
    sets = record_units(header, "h264")
    return [unit for unit in sets if kind_of(unit) in (SPS, PPS)], prefix


def fit_record(sets: Sequence[bytes]) -> bool:
    """Return whether a record has room for parameter sets and for two of an encoder."""
    sequences = sum(kind_of(unit) == SPS for unit in sets)
    is_room = sequences < _MOST_SEQUENCES and len(sets) - sequences < _MOST_PICTURES
    return is_room and all(len(unit) <= _MOST_SET_BYTES for unit in sets)


def free_id(sets: Iterable[bytes]) -> int | None:
    """Return the first id that no set uses, neither a sequence's nor a picture's, or None without one.

    Args:
        sets: Sequence and picture parameter sets.
    """
    used_ids = {sequence_set(unit).id if kind_of(unit) == SPS else picture_set_ids(unit)[0] for unit in sets}
    return next((set_id for set_id in range(MOST_IDS) if set_id not in used_ids), None)


def record(sets: Sequence[bytes]) -> bytes:
    """Return the avcC record of parameter sets whose ids differ; profile and level are the largest of them.

    Args:
        sets: Sequence and picture parameter sets of 4:2:0 with 8 bits, in order.
    """
    sequences, pictures = ([unit for unit in sets if kind_of(unit) == kind] for kind in (SPS, PPS))
    fields = [sequence_set(unit) for unit in sequences]
    profile, level = max(field.profile for field in fields), max(field.level for field in fields)
    constraints = 255
    for field in fields:
        constraints &= field.constraints
    parts = [bytes((1, profile, constraints, level, 0xFF, 0xE0 | len(sequences)))]
    parts += [len(unit).to_bytes(2, "big") + unit for unit in sequences]
    parts.append(bytes((len(pictures),)))
    parts += [len(unit).to_bytes(2, "big") + unit for unit in pictures]
    if profile in _HIGH:
        parts.append(bytes((0xFC | 1, 0xF8, 0xF8, 0)))
    return b"".join(parts)
