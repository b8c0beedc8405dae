"""Copies of HEVC, and the frames beside them, whose sets and slices get ids of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reelweave.curate.cut.encode import X265
from reelweave.curate.cut.smart.bits import units_of, with_emulation, with_lengths
from reelweave.curate.cut.smart.coding import Header, PacketFacts, SetsOf
from reelweave.curate.cut.smart.hevc.ids import Ids, free_ids, renamed_set, renamed_slice
from reelweave.curate.cut.smart.hevc.record import fit_record, header_units, record
from reelweave.curate.cut.smart.hevc.sets import SequenceSet, picture_set_ids, sequence_set, video_set
from reelweave.curate.cut.smart.hevc.units import (
    BLA,
    BLA_WITHOUT_LEADING,
    CRA,
    DELIMITER,
    END_OF_SEQUENCE,
    END_OF_STREAM,
    ENTRIES,
    FILLER,
    HEADER_BYTES,
    IDR,
    LIGHT,
    PASSING,
    PPS,
    RADL,
    RASL,
    RESERVED,
    SEI,
    SLICES,
    SPS,
    SUFFIX_SEI,
    UNCARRIED,
    VPS,
    kind_of,
    layer_of,
    payloads,
    without_uncarried,
)
from reelweave.loader.dataset.samples.frames.bits import ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import without_emulation

_SETS = (VPS, SPS, PPS)
_PROFILES = (1, 2)  # Main and Main 10
_LEFT_OUT = frozenset({*_SETS, DELIMITER, END_OF_SEQUENCE, END_OF_STREAM, FILLER, *range(41, 64)})
_DISCARDS = 0x40  # no_output_of_prior_pics_flag, behind first_slice_segment_in_pic_flag
_FIRST = 0x80


class Hevc:
    """HEVC as a `Coding`: runs begin at IDR and CRA pictures, whose leading pictures are left out."""

    name, encoder = "hevc", X265

    def header(self, header: bytes) -> Header:
        """Read the sets of a container, and what it says of the light of the pictures."""
        units, prefix = header_units(header)
        sets = tuple(unit for unit in units if kind_of(unit) in _SETS and not layer_of(unit))
        fault = "layers or auxiliary pictures" if any(layer_of(unit) for unit in units) else None
        beside: list[bytes] = []
        for unit in units:
            if kind_of(unit) in (SEI, SUFFIX_SEI):
                kinds = {kind for kind, _ in payloads(unit)}
                if kinds <= LIGHT:
                    beside.append(unit)
                elif not kinds <= PASSING | UNCARRIED:
                    fault = fault or "metadata in the header of its container"
        return Header(sets, prefix, tuple(beside), fault)

    def look(self, units: Sequence[bytes]) -> PacketFacts:
        """Return the facts of a packet."""
        if any(len(unit) <= HEADER_BYTES and kind_of(unit) not in _LEFT_OUT for unit in units):
            return PacketFacts(is_whole=False)
        kinds = {kind_of(unit) for unit in units}
        pictures = [unit for unit in units if kind_of(unit) in SLICES]
        of_pictures = {kind_of(unit) for unit in pictures}
        firsts = [bool(unit[HEADER_BYTES] & _FIRST) for unit in pictures]
        try:
            is_read = all(payloads(unit) is not None for unit in units if kind_of(unit) == SEI)
        except ParameterError:
            is_read = False
        fault = None
        if of_pictures & RESERVED or any(len(unit) > 1 and layer_of(unit) for unit in units):
            fault = "layers or auxiliary pictures"
        return PacketFacts(
            is_entry=bool(of_pictures) and of_pictures <= {*ENTRIES},
            is_reset=bool(of_pictures) and of_pictures <= {*IDR},
            is_leading=bool(of_pictures) and of_pictures <= {*RADL, *RASL},
            is_whole=is_read and len(of_pictures) == 1 and firsts[0] and sum(firsts) == 1,
            ends=bool(kinds & {END_OF_SEQUENCE, END_OF_STREAM}),
            has_sets=bool(kinds & {*_SETS}),
            fault=fault,
        )

    def origin_fault(self, _: bytes, /) -> str | None:
        """Return None: no film is known whose begin says how it is decoded."""
        return None

    def set_key(self, unit: bytes) -> tuple[int, int] | None:
        """Return type and id of a parameter set."""
        kind = kind_of(unit)
        if kind == VPS:
            return kind, video_set(unit).id
        if kind == SPS:
            return kind, sequence_set(unit).id
        return (kind, picture_set_ids(unit)[0]) if kind == PPS else None

    def sets_of(self, sets: tuple[bytes, ...]) -> SetsOf:
        """Return the facts of parameter sets, with the fault for which nothing is copied."""
        try:
            layers = [video_set(unit).layers for unit in sets if kind_of(unit) == VPS]
            sequences = [sequence_set(unit) for unit in sets if kind_of(unit) == SPS]
            ids = free_ids(sets)
        except ParameterError as error:
            return SetsOf(sets, fault=str(error))
        fault = next(_faults(sets, layers, sequences, ids), None)
        first = sequences[0] if sequences else None
        return SetsOf(
            sets,
            encoder_ids=() if ids is None else ids,
            fault=fault,
            bits=8 if first is None else first.luma_bits,
            chroma_location=None if first is None else first.chroma_location,
            has_pyramid=max((sequence.reordered for sequence in sequences), default=0) > 1,
        )

    def record(self, sets: Sequence[bytes]) -> bytes:
        """Return the hvcC record of parameter sets."""
        return record(sets)

    def sample(self, units: Sequence[bytes]) -> bytes:
        """Return the sample of a copied packet."""
        return with_lengths(_copied(units))

    def first_sample(self, units: Sequence[bytes], beside: Sequence[bytes], /) -> bytes:
        """Return the sample of the first packet of a run, which nothing leads.

        A CRA picture becomes a broken link, so that decoders begin anew with it.
        """
        nal_units = _copied(units)
        is_told = any(
            kind in LIGHT for unit in nal_units if kind_of(unit) == SEI for kind, _ in payloads(unit)
        )
        at = next(at for at, unit in enumerate(nal_units) if kind_of(unit) in SLICES)
        before = [*nal_units[:at], *(() if is_told else beside)]
        return with_lengths([*before, *(_opened(unit) for unit in nal_units[at:])])

    def edge_options(self, values: Mapping[str, str], sets: SetsOf, /) -> dict[str, str]:
        """Return the options of x265."""
        params = values["x265-params"]
        if not sets.has_pyramid:
            params += ":b-pyramid=0"
        if sets.chroma_location is not None:
            params += f":chromaloc={sets.chroma_location}"
        return {**values, "x265-params": params}

    def edge_sets(self, header: bytes, sets: SetsOf, /) -> list[bytes]:
        """Return the parameter sets of the encoder under their new ids."""
        ids = Ids(*sets.encoder_ids)
        return [renamed_set(unit, ids) for unit in units_of(header, None) if kind_of(unit) in _SETS]

    def edge_sample(self, packet: bytes, sets: SetsOf, /) -> bytes:
        """Return the sample of an encoded packet: its slices, and the light of its pictures."""
        ids, units = Ids(*sets.encoder_ids), []
        for unit in units_of(packet, None):
            if (kind := kind_of(unit)) in SLICES:
                units.append(renamed_slice(unit, ids))
            elif kind == SEI and {kind for kind, _ in payloads(unit)} <= LIGHT:
                units.append(unit)
        return with_lengths(units)


def _copied(units: Sequence[bytes]) -> list[bytes]:
    nal_units = []
    for unit in units:
        kind = kind_of(unit)
        if kind == SEI:
            unit = without_uncarried(unit) or b""
        if unit and kind not in _LEFT_OUT:
            nal_units.append(unit)
    return nal_units


def _opened(unit: bytes) -> bytes:
    """Return a slice of a run's first picture that needs nothing, and discards nothing, of what lies before."""
    kind = kind_of(unit)
    if kind not in ENTRIES:
        return unit
    if kind == CRA or kind in BLA:
        unit = bytes((unit[0] & 0x81 | BLA_WITHOUT_LEADING << 1,)) + unit[1:]
    if unit[HEADER_BYTES] & _DISCARDS:
        payload = without_emulation(unit[HEADER_BYTES:])
        unit = unit[:HEADER_BYTES] + with_emulation(bytes((payload[0] & ~_DISCARDS,)) + payload[1:])
    return unit


def _faults(
    sets: tuple[bytes, ...], layers: list[int], sequences: list[SequenceSet], ids: Ids | None
) -> Iterator[str]:
    if {kind_of(unit) for unit in sets} != {*_SETS}:
        yield "no parameter sets"
    if not fit_record(sets):
        yield "too many parameter sets"
    if ids is None:
        yield "all ids of parameter sets are used"
    if any(count > 1 for count in layers):
        yield "layers or auxiliary pictures"
    if len({sequence.luma_bits for sequence in sequences}) > 1:
        yield "parameter sets of several depths"
    for sequence in sequences:
        if sequence.profile not in _PROFILES or sequence.chroma != 1:
            yield "another profile than Main and Main 10"
        if sequence.luma_bits != sequence.chroma_bits or sequence.luma_bits not in (8, 10):
            yield "not 4:2:0 of 8 or 10 bits"
        if sequence.fields:
            yield "field pictures"
        if sequence.crop_left:  # which FFmpeg cuts off or not by its memory's alignment
            yield "parameter sets that crop at the left"
        if sequence.window:
            yield "parameter sets that state a display window"
