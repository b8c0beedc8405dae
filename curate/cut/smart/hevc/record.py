"""Record of a sample entry of HEVC, hvcC (ISO/IEC 14496-15, 8.3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reelweave.curate.cut.smart.bits import units_of
from reelweave.curate.cut.smart.hevc.sets import sequence_set
from reelweave.curate.cut.smart.hevc.units import HEADER_BYTES, PPS, SPS, VPS, kind_of
from reelweave.loader.dataset.samples.frames.nal_units import prefix_bytes, record_units

_MOST_SETS, _MOST_SET_BYTES = 60, 65535
_TIER = 0x20


def header_units(header: bytes) -> tuple[list[bytes], int | None]:
    """Return the NAL units that a container states, and the bytes of length prefixes of its packets.

    Args:
        header: Extradata: an hvcC record, or NAL units with start codes; may be empty.

    Raises:
        ParameterError: It holds too many NAL units.
    """
    prefix = prefix_bytes(header, "hevc")
    units = units_of(header, None) if prefix is None else record_units(header, "hevc")
    return [unit for unit in units if len(unit) > HEADER_BYTES], prefix


def fit_record(sets: Sequence[bytes]) -> bool:
    """Return whether a record has room for parameter sets and for those of an encoder, as decoders read it."""
    return len(sets) <= _MOST_SETS and all(len(unit) <= _MOST_SET_BYTES for unit in sets)


def record(sets: Sequence[bytes]) -> bytes:
    """Return the hvcC record of parameter sets whose ids differ; tier and level are the largest of them.

    Args:
        sets: Video, sequence and picture parameter sets of 4:2:0 with equal depths.
    """
    sequences = [sequence_set(unit) for unit in sets if kind_of(unit) == SPS]
    levels = [sequence.profile_level for sequence in sequences]
    first = sequences[0]
    # Version, tier and profile; then compatibility and constraints that hold for all, and the largest level.
    parts = [
        bytes(
            (1, max(level[0] & _TIER for level in levels) | max(sequence.profile for sequence in sequences))
        ),
        bytes(_all_of(level[1:11] for level in levels)),
        bytes((max(level[11] for level in levels),)),
        bytes(
            (
                0xF0,
                0,
                0xFC,
                0xFC | first.chroma,
                0xF8 | first.luma_bits - 8,
                0xF8 | first.chroma_bits - 8,
                0,
                0,
            )
        ),
        bytes(
            (
                max(sequence.sub_layers for sequence in sequences) << 3
                | all(s.nested for s in sequences) << 2
                | 3,
            )
        ),
    ]
    # An array for each kind of set, with the mark that it is complete.
    arrays = [[unit for unit in sets if kind_of(unit) == kind] for kind in (VPS, SPS, PPS)]
    parts.append(bytes((len(arrays),)))
    for kind, units in zip((VPS, SPS, PPS), arrays, strict=True):
        parts.append(bytes((0x80 | kind,)) + len(units).to_bytes(2, "big"))
        parts += [len(unit).to_bytes(2, "big") + unit for unit in units]
    return b"".join(parts)


def _all_of(flags: Iterable[bytes]) -> bytes:
    """Return the flags that all have."""
    common = (1 << 80) - 1
    for stream_flags in flags:
        common &= int.from_bytes(stream_flags, "big")
    return common.to_bytes(10, "big")
