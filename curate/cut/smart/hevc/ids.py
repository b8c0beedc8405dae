"""Other ids in the parameter sets and slices of an encoder that offers none, so that they can stand beside copies.

A slice keeps its bytes but for one more at its begin: x265's picture set has id 0, which takes one bit, and ids from 15
to 30 take nine. So all that lies behind stays at its bits, and entry points within a slice count as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reelweave.curate.cut.smart.bits import exp_golomb, with_emulation
from reelweave.curate.cut.smart.hevc.sets import (
    MOST_SEQUENCE_IDS,
    MOST_VIDEO_IDS,
    picture_set_ids,
    sequence_set,
    video_set,
)
from reelweave.curate.cut.smart.hevc.units import HEADER_BYTES, IRAP, PPS, SPS, VPS, kind_of
from reelweave.loader.dataset.samples.frames.bits import Bits, ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import without_emulation

_PICTURE_IDS = range(15, 31)  # of nine bits


class Ids(NamedTuple):
    """Ids of a video, a sequence and a picture parameter set."""

    video: int
    sequence: int
    picture: int


def free_ids(sets: Iterable[bytes]) -> Ids | None:
    """Return ids that no set uses, or None without.

    Raises:
        ParameterError: A set cannot be read.
    """
    used: dict[int, set[int]] = {VPS: set(), SPS: set(), PPS: set()}
    for unit in sets:
        kind = kind_of(unit)
        if kind == VPS:
            used[kind].add(video_set(unit).id)
        elif kind == SPS:
            used[kind].add(sequence_set(unit).id)
        else:
            used[kind].add(picture_set_ids(unit)[0])
    choices = ((VPS, range(MOST_VIDEO_IDS)), (SPS, range(MOST_SEQUENCE_IDS)), (PPS, _PICTURE_IDS))
    ids = [
        next((set_id for set_id in valid_ids if set_id not in used[kind]), None)
        for kind, valid_ids in choices
    ]
    video, sequence, picture = ids
    return None if video is None or sequence is None or picture is None else Ids(video, sequence, picture)


def renamed_set(unit: bytes, ids: Ids) -> bytes:
    """Return a parameter set with other ids.

    Raises:
        ParameterError: It cannot be read.
    """
    payload = without_emulation(unit[HEADER_BYTES:])
    text = f"{int.from_bytes(payload, 'big'):0{8 * len(payload)}b}"
    content = text.rstrip("0")[:-1]  # without the bit that ends it
    kind = kind_of(unit)
    if kind == VPS:
        content = f"{ids.video:04b}{content[4:]}"
    elif kind == SPS:
        begin, end = _bounds_of_id(payload)
        content = f"{ids.video:04b}{content[4:begin]}{exp_golomb(ids.sequence)}{content[end:]}"
    else:
        bits = Bits(payload)
        bits.unsigned()
        bits.unsigned()
        content = exp_golomb(ids.picture) + exp_golomb(ids.sequence) + content[bits.position :]
    ended = f"{content}1"
    ended += "0" * (-len(ended) % 8)
    return unit[:HEADER_BYTES] + with_emulation(int(ended, 2).to_bytes(len(ended) // 8, "big"))


def _bounds_of_id(payload: bytes) -> tuple[int, int]:
    """Return where the id of a sequence parameter set without sub-layers begins and ends, in bits."""
    bits = Bits(payload)
    bits.take(4)
    if bits.take(3):
        raise ParameterError("an encoder made temporal sub-layers")
    bits.take(1 + 96)
    begin = bits.position
    bits.unsigned()
    return begin, bits.position


def renamed_slice(unit: bytes, ids: Ids) -> bytes:
    """Return a slice that refers to another picture parameter set than that with id 0.

    Raises:
        ParameterError: It refers to another one.
    """
    payload = without_emulation(unit[HEADER_BYTES:])
    at = 2 if kind_of(unit) in IRAP else 1
    begin = f"{payload[0]:08b}" if payload else ""
    if begin[at : at + 1] != exp_golomb(0):
        raise ParameterError("an encoder refers to another parameter set than its first")
    text = begin[:at] + exp_golomb(ids.picture) + begin[at + 1 :]
    return unit[:HEADER_BYTES] + with_emulation(int(text, 2).to_bytes(len(text) // 8, "big") + payload[1:])
