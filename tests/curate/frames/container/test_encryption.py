"""Encrypted films of many makers, and files beside films of streams: each is called so, and never damaged."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import av
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from tests.curate.frames.test_segments import boxes, muxed
from tests.cutting import curated
from tests.media import write_video

KEY = "76a6c65c5ea762046bd749a2e632ccbb"
CENC = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": KEY, "encryption_kid": KEY[::-1]}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


def why_not(path: Path, out: Path) -> str:
    """The reason of a source that gives no clips and no seconds."""
    ((record, clip),) = curated(path, out)
    assert (record.state, record.end_s, clip) == ("failed", None, b"")
    return record.reason


def noise(length: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(length)


def fragmented(path: Path) -> None:
    muxed(write_video(path.with_name("whole.mp4"), (50,)), path, {**CENC, **FRAGMENTS})


def with_pattern(path: Path) -> None:
    fragmented(path)
    data = path.read_bytes()
    assert b"schm\0\0\0\0cenc" in data
    path.write_bytes(data.replace(b"schm\0\0\0\0cenc", b"schm\0\0\0\0cbcs"))


def by_groups(path: Path) -> None:
    """Clear by default, and encrypted by a group of samples (`seig`)."""
    muxed(write_video(path.with_name("whole.mp4"), (50,)), path, CENC)
    data = path.read_bytes()
    assert boxes(data)[-1][0] == b"moov"
    for kind in (b"senc", b"saiz", b"saio"):
        data = data.replace(kind, b"free")
    at = data.index(b"tenc") + 10
    assert data[at : at + 2] == b"\x01\x08"
    data = data[:at] + b"\0\0" + data[at + 2 :]
    entry = b"\0\0\1\x08" + bytes.fromhex(KEY)
    groups = full_box(b"sgpd", 1, b"seig" + u32(len(entry)) + u32(1) + entry)
    groups += full_box(b"sbgp", 0, b"seig" + u32(1) + u32(50) + u32(1))
    places = [data.index(kind) - 4 for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl")]
    end = places[-1] + int.from_bytes(data[places[-1] : places[-1] + 4], "big")
    grown = bytearray(data[:end] + groups + data[end:])
    for place in places:
        grown[place : place + 4] = u32(int.from_bytes(data[place : place + 4], "big") + len(groups))
    path.write_bytes(grown)


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def full_box(kind: bytes, version: int, content: bytes) -> bytes:
    return u32(12 + len(content)) + kind + bytes([version, 0, 0, 0]) + content


def element(name: bytes, content: bytes) -> bytes:
    return name + bytes([0x80 | len(content)]) + content


def stating(data: bytes, track: int, key_id: bytes) -> tuple[bytes, bytes]:
    """Add ContentEncryption to a track of Matroska; give what lies before the clusters, and the clusters."""
    head, mark, clusters = data.partition(b"\x1f\x43\xb6\x75")
    encryption = element(b"\x50\x35", b"\x47\xe1\x81\x05" + (element(b"\x47\xe2", key_id) if key_id else b""))
    added = element(b"\x6d\x80", element(b"\x62\x40", b"\x50\x33\x81\x01" + encryption))
    tracks = head.rindex(b"\x16\x54\xae\x6b") + 4
    place, end = inside(head, tracks)
    entries = []
    while place < end:
        first, after = inside(head, place + 1)
        if head[place] == 0xAE:  # the other one is a checksum
            entries.append(head[first:after])
        place = after
    entries[track] += added
    body = b"".join(b"\xae" + wide(entry) for entry in entries)
    return head[:tracks] + wide(body) + head[end:], mark + clusters


def inside(data: bytes, size: int) -> tuple[int, int]:
    """Where the content of an element begins and ends, by the place of its size."""
    length = 9 - data[size].bit_length()
    content = int.from_bytes(data[size : size + length], "big") - (1 << 7 * length)
    return size + length, size + length + content


def wide(content: bytes) -> bytes:
    return (1 << 56 | len(content)).to_bytes(8, "big") + content


def matroska(path: Path, key_id: bytes = b"a key", codec: str = "libx264") -> None:
    head, clusters = stating(write_video(path, (50,), codec=codec).read_bytes(), 0, key_id)
    blocks = bytearray(clusters)
    for place in range(300, len(blocks) - 100, 200):
        blocks[place : place + 100] = noise(100)
    path.write_bytes(head + blocks)


def scrambled(path: Path) -> None:
    """A broadcast whose packets of pictures are scrambled."""
    data = bytearray(write_video(path, (50,)).read_bytes())
    for place in range(0, len(data), 188):
        if data[place + 1] & 0x1F == 1:  # FFmpeg's first stream is 0x100
            data[place + 3] |= 0x80
            data[place + 40 : place + 188] = noise(148)
    path.write_bytes(data)


def sample_aes(path: Path) -> None:
    """A segment of HLS whose pictures are encrypted within their units, as its program map says."""
    data = bytearray(write_video(path, (50,), audio=True).read_bytes())
    for place in range(0, len(data), 188):
        kind = int.from_bytes(data[place + 1 : place + 3], "big") & 0x1FFF
        if kind == 0x1000:  # FFmpeg's program map
            section = data[place + 5 : place + 188]
            end = 3 + (int.from_bytes(section[1:3], "big") & 0xFFF)
            assert section.count(b"\x1b\xe1\x00") == 1
            section[: end - 4] = section[: end - 4].replace(b"\x1b\xe1\x00", b"\xdb\xe1\x00")
            section[end - 4 : end] = u32(crc32_of_ts(section[: end - 4]))
            data[place + 5 : place + 188] = section
        elif kind == 0x100 and not data[place + 1] & 0x40:
            data[place + 40 : place + 188] = noise(148)
    path.write_bytes(data)


def crc32_of_ts(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1 ^ (0x04C11DB7 if found & 0x80000000 else 0)) & 0xFFFFFFFF
    return found


def filtered_flv(path: Path) -> None:
    """FLV whose tags of pictures have a filter, with its header before the payload."""
    data = write_video(path, (50,)).read_bytes()
    place, made = 13, bytearray(data[:13])
    while place < len(data):
        size = int.from_bytes(data[place + 1 : place + 4], "big")
        tag, payload = bytearray(data[place : place + 11]), data[place + 11 : place + 11 + size]
        if tag[0] == 9:
            tag[0] |= 0x20
            payload = b"\x01Encryption\0\0\0\x11\x01" + noise(16 + len(payload))
        tag[1:4] = len(payload).to_bytes(3, "big")
        made += tag + payload + u32(11 + len(payload))
        place += size + 15
    path.write_bytes(made)


FILMS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "fragments": ("a.mp4", fragmented, "cenc"),
    "pattern": ("a.mp4", with_pattern, "cbcs"),
    "groups": ("a.mp4", by_groups, "cenc"),
    "matroska": ("a.mkv", matroska, "Matroska"),
    "matroska without a name of its key": ("a.mkv", lambda path: matroska(path, b""), "Matroska"),
    "webm": ("a.webm", lambda path: matroska(path, codec="libvpx-vp9"), "Matroska"),
    "scrambled": ("a.ts", scrambled, "scrambled TS"),
    "sample-aes": ("a.ts", sample_aes, "SAMPLE-AES"),
    "flv": ("a.flv", filtered_flv, "FLV"),
}


@pytest.mark.parametrize("maker", FILMS)
def test_an_encrypted_film_is_called_so(maker: str, tmp_path: Path) -> None:
    name, make, scheme = FILMS[maker]
    make(tmp_path / name)
    expected = f"is encrypted ({scheme}), and no key is known here: decrypt it first"
    assert why_not(tmp_path / name, tmp_path / "out") == expected


def test_noise_that_decodes_is_no_clip(tmp_path: Path) -> None:
    """Decoders of raw pictures find no error, so only the packets tell."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w", format="mov", options=CENC) as film:
        stream = film.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuyv422"
        for number in range(50):
            frame = av.VideoFrame(64, 64, "yuyv422")
            frame.pts = number
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))
    assert "is encrypted (" in why_not(path, tmp_path / "out")


def test_encrypted_sound_is_left_out_in_words(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", (60,), audio=True)
    path.write_bytes(b"".join(stating(path.read_bytes(), 1, b"a key")))
    ((record, _),) = curated(path, tmp_path / "out")
    assert (record.state, record.audio) == ("kept", "none (its sound is encrypted)")


def test_samples_that_are_scrambled_from_their_middle_on_are_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", (50,), audio=True)
    whole, data = path.read_bytes(), bytearray(path.read_bytes())
    for pid in (0x101, 0x100):  # sound, then pictures
        for place in range(len(data) // 376 * 188, len(data), 188):
            if int.from_bytes(data[place + 1 : place + 3], "big") & 0x1FFF == pid:
                data[place + 3] |= 0x80
        if pid == 0x101:
            assert probe(bytes(data)).frames == probe(whole).frames == 50
    with pytest.raises(SourceError, match=r"is encrypted \(scrambled TS\)"):
        probe(bytes(data))


def test_a_damaged_film_is_not_called_encrypted(tmp_path: Path) -> None:
    for suffix in ("mkv", "ts", "mp4"):
        path = write_video(tmp_path / f"a.{suffix}", (50, 50), options={"g": "25"})
        data = bytearray(path.read_bytes())
        for place in range(len(data) // 3, len(data) // 2, 200):
            data[place : place + 50] = noise(50)
        path.write_bytes(data)
        reasons = [record.reason or "" for record, _ in curated(path, tmp_path / suffix)]
        assert any("damaged" in reason or "cut off" in reason for reason in reasons), reasons
        assert not any("encrypted" in reason for reason in reasons)


HLS = b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n%s#EXTINF:2.0,\na0.ts\n#EXT-X-ENDLIST\n"
KEYS = b'#EXT-X-KEY:METHOD=AES-128,URI="k.key"\n'
PLAYLIST = (
    "cannot be opened: it is a playlist, which holds no video; give the files that it names, or join them"
    " (ffmpeg -i PLAYLIST -c copy film.mkv)"
)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HLS % b"", PLAYLIST),
        (HLS % b"#EXT-X-KEY:METHOD=NONE\n", PLAYLIST),
        (HLS % KEYS, f"{PLAYLIST}; those files are encrypted (AES-128): decrypt them first"),
        (b'<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011">', "it is a manifest of DASH"),
        (noise(188 * 400), "no video container, or encrypted as a whole, or its index is missing"),
    ],
)
def test_files_of_streams_are_called_so(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ts"
    path.write_bytes(data)
    reason = why_not(path, tmp_path / "out")
    assert words in reason
    assert words != PLAYLIST or reason == PLAYLIST


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ((b"moof", b"mdat"), "segment of a stream, without the index (moov)"),
        ((b"ftyp", b"moov"), "holds no frame: it is the init segment of a stream"),
    ],
)
def test_parts_of_a_stream_are_called_so(kinds: tuple[bytes, bytes], words: str, tmp_path: Path) -> None:
    path = muxed(write_video(tmp_path / "whole.mp4", (50,)), tmp_path / "a.mp4", FRAGMENTS)
    path.write_bytes(b"".join(data for kind, data in boxes(path.read_bytes()) if kind in kinds))
    assert words in why_not(path, tmp_path / "out")
