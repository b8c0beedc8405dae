"""Parameter sets of HEVC get ids of their own and stand beside others in one record; slices follow them."""

from contextlib import suppress
from pathlib import Path

import av
import pytest

from reelweave.curate.cut.smart.bits import with_emulation
from reelweave.curate.cut.smart.hevc.coding import Hevc
from reelweave.curate.cut.smart.hevc.ids import Ids, free_ids, renamed_set, renamed_slice
from reelweave.curate.cut.smart.hevc.record import header_units, record
from reelweave.curate.cut.smart.hevc.sets import picture_set_ids, sequence_set, video_set
from reelweave.curate.cut.smart.hevc.units import PPS, SEI, SPS, VPS, kind_of, payloads, without_uncarried
from reelweave.loader.dataset.samples.frames.bits import ParameterError
from reelweave.loader.dataset.samples.frames.nal_units import without_emulation
from tests.curate.cut.smart.hevc.test_smart_hevc import X265
from tests.media import write_video

IDS = Ids(3, 5, 17)
SETTINGS = (
    "",
    "bframes=0:ref=5",
    "scaling-list=default",
    "temporal-layers=3",
    "transfer=smpte2084:chromaloc=2",
    "hrd=1",
)


def header_of(path: Path, words: str = "", pix_fmt: str = "yuv420p10le") -> bytes:
    limits = "vbv-maxrate=3000:vbv-bufsize=3000"
    options = {"preset": "ultrafast", "x265-params": f"{X265}:{limits}:{words}"}
    write_video(path, (3,), codec="libx265", pix_fmt=pix_fmt, options=options)
    with av.open(str(path)) as container:
        return bytes(container.streams.video[0].codec_context.extradata)


def sets_of(path: Path, words: str = "", pix_fmt: str = "yuv420p10le") -> list[bytes]:
    return [
        unit for unit in header_units(header_of(path, words, pix_fmt))[0] if kind_of(unit) in (VPS, SPS, PPS)
    ]


@pytest.mark.parametrize("words", SETTINGS)
def test_sets_are_read_as_the_encoder_wrote_them(words: str, tmp_path: Path) -> None:
    video, sequence, picture = sets_of(tmp_path / "a.mp4", words)
    known = sequence_set(sequence)
    assert (video_set(video).id, video_set(video).layers) == (0, 1)
    assert (known.id, known.video_id, known.profile, known.chroma) == (0, 0, 2, 1)
    assert (known.luma_bits, known.chroma_bits, known.crop_left) == (10, 10, 0)
    assert (known.fields, known.window) == (False, False)
    assert known.chroma_location == (2 if "chromaloc" in words else None)
    assert known.sub_layers == (3 if "temporal" in words else 1)
    assert picture_set_ids(picture) == (0, 0)


@pytest.mark.parametrize("words", [one for one in SETTINGS if "temporal" not in one])
def test_renamed_sets_refer_to_each_other_and_say_the_same(words: str, tmp_path: Path) -> None:
    sets = sets_of(tmp_path / "a.mp4", words)
    video, sequence, picture = (renamed_set(unit, IDS) for unit in sets)
    known = sequence_set(sequence)
    assert video_set(video).id == known.video_id == IDS.video
    assert picture_set_ids(picture) == (IDS.picture, known.id) == (IDS.picture, IDS.sequence)
    assert [renamed_set(unit, Ids(0, 0, 0)) for unit in (video, sequence, picture)] == sets


def test_a_record_says_what_both_parts_need(tmp_path: Path) -> None:
    low = sets_of(tmp_path / "a.mp4", "level-idc=3.1", "yuv420p")
    high = [renamed_set(unit, IDS) for unit in sets_of(tmp_path / "b.mp4", "level-idc=5.1")]
    both = record([*low, *high])
    assert header_units(both) == ([low[0], high[0], low[1], high[1], low[2], high[2]], 4)
    assert (both[1], both[12]) == (2, 153)
    one = header_of(tmp_path / "c.mp4")
    ours = record(sets_of(tmp_path / "c.mp4"))
    assert [ours[at] for at in (*range(1, 13), 16, 17, 18)] == [one[at] for at in (*range(1, 13), 16, 17, 18)]


def test_free_ids_are_those_that_no_set_uses(tmp_path: Path) -> None:
    sets = sets_of(tmp_path / "a.mp4")
    assert free_ids([]) == Ids(0, 0, 15)
    assert free_ids(sets) == Ids(1, 1, 15)
    used = [renamed_set(sets[2], Ids(0, 0, number)) for number in range(15, 31)]
    assert free_ids([*sets, *used[:-1]]) == Ids(1, 1, 30)
    assert free_ids([*sets, *used]) is None
    assert Hevc().sets_of((*sets, *used)).fault == "all ids of parameter sets are used"


def test_a_slice_keeps_all_its_bytes_behind_a_new_id() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.binary(min_size=1, max_size=60), st.integers(15, 30), st.booleans())
    def kept(tail: bytes, picture: int, entry: bool) -> None:
        begin = 0b10100000 | tail[0] & 31 if entry else 0b11000000 | tail[0] & 63
        payload = bytes((begin,)) + tail + b"\x80"
        header = bytes((19 << 1 if entry else 1 << 1, 1))
        new = renamed_slice(header + with_emulation(payload), Ids(1, 1, picture))
        assert not any(code in new for code in (b"\0\0\0", b"\0\0\1", b"\0\0\2"))
        assert new[:2] == header
        plain = without_emulation(new[2:])
        assert plain[2:] == payload[1:]
        text, old = f"{plain[0]:08b}{plain[1]:08b}", f"{begin:08b}"
        at = 2 if entry else 1
        assert (text[:at], text[at : at + 9], text[at + 9 :]) == (
            old[:at],
            f"0000{picture + 1:05b}",
            old[at + 1 :],
        )

    kept()


def test_a_slice_of_another_picture_set_is_refused() -> None:
    with pytest.raises(ParameterError, match="another parameter set"):
        renamed_slice(bytes((1 << 1, 1, 0b10010000, 7)), IDS)


def test_bytes_that_keep_start_codes_out_come_and_go() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.binary(max_size=60))
    def unchanged(payload: bytes) -> None:
        escaped = with_emulation(payload + b"\x80")
        assert not any(code in escaped for code in (b"\0\0\0", b"\0\0\1", b"\0\0\2"))
        assert without_emulation(escaped) == payload + b"\x80"

    unchanged()


def test_damaged_sets_and_information_are_refused_in_words() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.binary(max_size=60))
    def refused(data: bytes) -> None:
        for read in (video_set, sequence_set, picture_set_ids, payloads, without_uncarried):
            with suppress(ParameterError):
                read(b"\x42\1" + data)
        with suppress(ParameterError):
            header_units(data)
        with suppress(ParameterError):
            Hevc().header(b"\1" + data)
        Hevc().look([b"\x42\1" + data, b"\x4e\1" + data, b"\x26\1" + data, data or b"\0"])

    refused()


def test_more_messages_than_a_picture_has_are_refused_before_they_cost_time() -> None:
    few, many = (bytes((SEI << 1, 1)) + b"\5\0" * count + b"\x80" for count in (1000, 5000))
    assert payloads(few) == [(5, b"")] * 1000
    with pytest.raises(ParameterError, match="too many messages"):
        payloads(many)
    assert not Hevc().look([many, b"\x26\1\xaf"]).is_whole


def test_long_information_is_read_and_written_whole() -> None:
    told = b"\xb5\0\x31" + bytes(range(256)) * 2
    plus = b"\xff\x01" + bytes((2, 9, 9))  # type 256
    dynamic = bytes((4, 4)) + b"\xb5\0\x3c\0"
    unit = bytes((SEI << 1, 1)) + with_emulation(
        bytes((4, 255, 255, len(told) - 510)) + told + dynamic + plus + b"\x80"
    )
    assert payloads(unit) == [(4, told), (4, b"\xb5\0\x3c\0"), (256, b"\x09\x09")]
    assert payloads(without_uncarried(unit) or b"") == [(4, told), (256, b"\x09\x09")]


@pytest.mark.parametrize(
    ("kind", "beside", "fault"),
    [
        (144, 1, None),
        (148, 0, None),
        (5, 0, None),
        (147, 0, "metadata in the header of its container"),
        (4, 0, "metadata in the header of its container"),
    ],
)
def test_what_a_header_says_of_all_pictures_is_carried_passed_or_a_reason(
    kind: int, beside: int, fault: str | None, tmp_path: Path
) -> None:
    sets = sets_of(tmp_path / "a.mp4")
    told = bytes((SEI << 1, 1, kind, 4, 1, 2, 3, 4, 0x80))
    header = Hevc().header(b"".join(b"\0\0\0\1" + unit for unit in [*sets, told]))
    assert (header.sets, header.prefix, header.fault) == (tuple(sets), None, fault)
    assert header.beside == (told,) * beside


def test_film_of_several_layers_is_a_reason(tmp_path: Path) -> None:
    video, *others = sets_of(tmp_path / "a.mp4")
    layered = bytearray(video)
    layered[3] = layered[3] | 1 << 4  # vps_max_layers_minus1
    assert Hevc().sets_of((bytes(layered), *others)).fault == "layers or auxiliary pictures"
    assert Hevc().sets_of((video, *others)).fault is None
    assert Hevc().sets_of((video, others[1])).fault == "no parameter sets"
