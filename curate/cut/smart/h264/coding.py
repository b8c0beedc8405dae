"""Copies of H.264 of 8 bits, and the frames beside them, whose sets x264 gives an id of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from reelweave.curate.cut.encode import X264
from reelweave.curate.cut.smart.bits import units_of, with_lengths
from reelweave.curate.cut.smart.coding import Header, PacketFacts, SetsOf
from reelweave.curate.cut.smart.h264.sets import (
    FILLER,
    IDR,
    LAYERED,
    PPS,
    SEI,
    SPS,
    SequenceSet,
    fit_record,
    free_id,
    header_sets,
    kind_of,
    picture_set_ids,
    record,
    sequence_set,
)
from reelweave.loader.dataset.samples.frames.bits import ParameterError

_UNSPECIFIED = range(24, 32)  # such as metadata of Dolby Vision
_LEFT_OUT = frozenset({SPS, PPS, FILLER, *_UNSPECIFIED})
_DELIMITER = 9  # of access units, which MP4 does not need
_LEFT_OUT_OF_EDGES = frozenset({SPS, PPS, SEI, _DELIMITER, FILLER})

_BUILD = re.compile(rb"x264 - core (\d+)")
_OLD_BUILD = 34
"""First build of x264 whose streams FFmpeg decodes without looking at the build, which only a film's begin states."""


class H264:
    """H.264 as a `Coding`: runs begin at IDR pictures."""

    name, encoder = "h264", X264

    def header(self, header: bytes) -> Header:
        """Read the sets of a container."""
        sets, prefix = header_sets(header)
        return Header(tuple(sets), prefix)

    def look(self, units: Sequence[bytes]) -> PacketFacts:
        """Return the facts of a packet."""
        kinds = {kind_of(unit) for unit in units}
        is_idr = IDR in kinds
        return PacketFacts(
            is_entry=is_idr,
            is_reset=is_idr,
            has_sets=SPS in kinds or PPS in kinds,
            fault="layers, partitions or auxiliary pictures" if kinds & LAYERED else None,
        )

    def origin_fault(self, packet: bytes, /) -> str | None:
        """Return why nothing of a film is copied."""
        build = _BUILD.search(packet)
        return "made by an early x264" if build and int(build[1]) < _OLD_BUILD else None

    def set_key(self, unit: bytes) -> tuple[int, int] | None:
        """Return type and id of a parameter set."""
        if (kind := kind_of(unit)) not in (SPS, PPS):
            return None
        return kind, sequence_set(unit).id if kind == SPS else picture_set_ids(unit)[0]

    def sets_of(self, sets: tuple[bytes, ...]) -> SetsOf:
        """Return the facts of parameter sets, with the fault for which nothing is copied."""
        try:
            sequences = [sequence_set(unit) for unit in sets if kind_of(unit) == SPS]
            encoder_id = free_id(sets)
        except ParameterError as error:
            return SetsOf(sets, fault=str(error))
        ids = () if encoder_id is None else (encoder_id,)
        return SetsOf(sets, ids, next(_faults(sets, sequences, encoder_id), None))

    def record(self, sets: Sequence[bytes]) -> bytes:
        """Return the avcC record of parameter sets."""
        return record(sets)

    def sample(self, units: Sequence[bytes]) -> bytes:
        """Return the sample of a copied packet."""
        return _sample(units, _LEFT_OUT)

    def first_sample(self, units: Sequence[bytes], _: Sequence[bytes], /) -> bytes:
        """Return the sample of the first packet of a run."""
        return self.sample(units)

    def edge_options(self, values: Mapping[str, str], sets: SetsOf, /) -> dict[str, str]:
        """Return the options of x264."""
        (set_id,) = sets.encoder_ids
        return {**values, "x264-params": f"{values['x264-params']}:sps-id={set_id}"}

    def edge_sets(self, header: bytes, _: SetsOf, /) -> list[bytes]:
        """Return the parameter sets of the encoder."""
        return header_sets(header)[0]

    def edge_sample(self, packet: bytes, _: SetsOf, /) -> bytes:
        """Return the sample of an encoded packet."""
        return _sample(units_of(packet, None), _LEFT_OUT_OF_EDGES)


def _sample(units: Sequence[bytes], left_out: frozenset[int]) -> bytes:
    return with_lengths([unit for unit in units if kind_of(unit) not in left_out])


def _faults(sets: tuple[bytes, ...], sequences: list[SequenceSet], encoder_id: int | None) -> Iterator[str]:
    if not sequences or all(kind_of(unit) == SPS for unit in sets):
        yield "no parameter sets"
    if not fit_record(sets):
        yield "too many parameter sets"
    if encoder_id is None:
        yield "all ids of parameter sets are used"
    for sequence in sequences:
        if sequence.chroma != 1 or max(sequence.luma_bits, sequence.chroma_bits) > 8:
            yield "not 8-bit 4:2:0"
        if not sequence.frames_only:
            yield "field pictures"
        if sequence.lossless:
            yield "lossless coding"
        if sequence.crop_left:  # which FFmpeg cuts off or not by its memory's alignment
            yield "parameter sets that crop at the left"
