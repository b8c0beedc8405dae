"""Parameter sets of both parts of a clip stand in one record, and are told apart by their ids."""

from contextlib import suppress
from pathlib import Path

import av
import pytest

from reelweave.curate.cut.smart.bits import MOST_UNITS, units_of
from reelweave.curate.cut.smart.h264.coding import H264
from reelweave.curate.cut.smart.h264.sets import (
    PPS,
    SPS,
    fit_record,
    free_id,
    header_sets,
    kind_of,
    picture_set_ids,
    record,
    sequence_set,
)
from reelweave.loader.dataset.samples.frames.bits import ParameterError
from tests.media import write_video


def header_of(path: Path) -> bytes:
    with av.open(str(path)) as container:
        return bytes(container.streams.video[0].codec_context.extradata)


def sets_of(path: Path) -> list[bytes]:
    return header_sets(header_of(path))[0]


@pytest.mark.parametrize("number", [0, 3, 31])
@pytest.mark.parametrize("params", ["", ":cqm=jvt", ":interlaced=1", ":bframes=0:ref=5"])
def test_sets_are_read_as_the_encoder_wrote_them(number: int, params: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (3,), options={"x264-params": f"sps-id={number}{params}"})
    sequence, picture = sets_of(path)
    known = sequence_set(sequence)
    assert (known.id, known.profile, known.chroma, known.luma_bits, known.chroma_bits) == (
        number,
        100,
        1,
        8,
        8,
    )
    assert known.frames_only is ("interlaced" not in params)
    assert picture_set_ids(picture) == (number, number)
    assert record([sequence, picture]) == header_of(path)


@pytest.mark.parametrize("profile", ["baseline", "main"])
def test_a_record_states_the_larger_profile_and_level(profile: str, tmp_path: Path) -> None:
    plain = sets_of(write_video(tmp_path / "a.mp4", (3,), options={"profile": profile, "level": "4.1"}))
    edges = sets_of(write_video(tmp_path / "b.mp4", (3,), options={"x264-params": "sps-id=1"}))
    both = record([*plain, *edges])
    assert both[1] == 100
    assert both[3] == 41
    assert header_sets(both) == ([plain[0], edges[0], plain[1], edges[1]], 4)


def test_a_free_id_is_neither_a_sequences_nor_a_pictures(tmp_path: Path) -> None:
    def sets(number: int) -> list[bytes]:
        path = tmp_path / f"{number}.mp4"
        return sets_of(write_video(path, (3,), options={"x264-params": f"sps-id={number}"}))

    used = [one for number in (0, 2) for one in sets(number)]
    assert free_id(used) == 1
    assert free_id([]) == 0
    assert free_id([one for number in range(32) for one in sets(number)]) is None


def test_sets_with_start_codes_are_those_of_the_record(tmp_path: Path) -> None:
    mp4 = write_video(tmp_path / "a.mp4", (3,))
    stream = write_video(tmp_path / "a.ts", (3,))
    sets, prefix = header_sets(header_of(stream))
    assert prefix is None
    assert [kind_of(one) for one in sets] == [SPS, PPS]
    assert [sequence_set(sets[0]).id, sequence_set(sets_of(mp4)[0]).id] == [0, 0]


def test_units_of_both_spellings_become_one_sample() -> None:
    units = [b"\x67\x64", b"\x68\xee", b"\x65\x88\x84", b"\x0c\xff\x80", b"\x7c\x01"]
    spelled = b"".join(b"\0\0\0\1" + unit for unit in units)
    short = b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)
    assert units_of(spelled, None) == units_of(short, 2) == units
    assert H264().sample(units) == b"\0\0\0\3\x65\x88\x84"


def test_damaged_sets_are_refused_in_words() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.binary(max_size=40))
    def refused(data: bytes) -> None:
        for read in (sequence_set, picture_set_ids):
            with suppress(ParameterError):
                read(b"\x67" + data)
        with suppress(ParameterError):
            assert all(header_sets(data)[0])

    refused()


def test_hostile_packets_and_sets_are_refused_before_they_cost_memory(tmp_path: Path) -> None:
    many = MOST_UNITS + 1
    for data, prefix in ((b"\1\x65" * many, 1), (b"\0\0\1\x65" * many, None)):
        with pytest.raises(ParameterError, match="too many NAL units"):
            units_of(data, prefix)
    sets = sets_of(write_video(tmp_path / "a.mp4", (3,)))
    assert fit_record(sets)
    assert not fit_record([*sets, *sets[:1] * 31])
    assert not fit_record([*sets, *sets[1:] * 255])
    assert not fit_record([sets[0] + bytes(1 << 16), sets[1]])
    with pytest.raises(ParameterError, match="valid id"):
        picture_set_ids(b"\x68\0\x80\0\xff\xff")
