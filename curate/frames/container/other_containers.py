"""Containers that FFmpeg reads and curation does not, told by their first bytes."""

import re

_COPIED = {
    rb"\xb7\xd8\x00\x20\x37\x49\xda\x11\xa6\x4e\x00\x07\xe9\x5e\xad\x8d": "WTV",
    rb"nut/multimedia container": "NUT",
    rb"DHAV|DAHUA": "DAV (Dahua)",
    rb"--[^\r\n]{1,70}\r\n(?:[^\r\n]+\r\n)*?content-type: image/jpeg": "JPEG pictures in parts (mpjpeg)",
}
"""Containers whose packets have the stamps and codecs that Matroska needs."""

_ENCODED = {
    rb"\0\0\0\0\x01\xbc.{8}\xe1\xe2": "GXF",
    rb"NSV[fs]": "NSV",
    rb"(?:Nuppel|MythTV)Video\0": "NuppelVideo",
    rb"AV[\x01\x02].\x55": "PVA",
    rb"\xf5\x46\x7a\xbd": "TiVo",
    rb"\.R1M|\.REC": "IVR",
    rb"[FCZ]WS[\x01-\x30]": "SWF (Flash)",
    rb"LEITCH\0\0": "LXF",
    rb"BIK[a-z]|KB2[a-z]": "Bink",
    rb"SMK[24]": "Smacker",
    rb"\x84\x10\xff\xff\xff\xff": "RoQ",
    rb"DEXA": "DXA",
    rb"FILM.{12}FDSC": "CPK (Sega FILM)",
    rb"(?:ISNh|SCHl|SEAD|SHEN|kVGT|MADk|MPCh|MVhd|MVIh|AVP6)": "Electronic Arts",
    rb"THP\0": "THP",
    rb"CRID": "USM",
    rb"L2\xaa\xab": "MOFLEX",
    rb"Interplay MVE File\x1a\0": "MVE",
    rb"FORM.{4}(?:ANIM|WVQA|MOVEPC|RLV[23])": "IFF",
    rb"(?:ANIM.{4}AHDR|SANM.{4}SHDR)": "SMUSH",
    rb".{12}xobX": "XMV",
    rb"ARMovie\n": "ARMovie",
    rb"\0\x0aSMJPEG": "SMJPEG",
    rb"\0.{1,2}\r\nVersion:Vivo": "Vivo",
    rb"vividas03": "Vividas",
    rb".{4}[\x11\x12]\xaf": "FLIC",
    rb"MLVI": "MLV (Magic Lantern)",
    rb"LUCAM-RECORDER": "SER",
    rb"CI\x2c\0": "Cine (Phantom)",
}
"""Others: some lack stamps (GXF), copies of some do not decode (SWF), and Matroska lacks codecs of some (Bink)."""

_RED = re.compile(rb".{4}RED[12]", re.DOTALL)


def _compiled(names: dict[bytes, str]) -> dict[re.Pattern[bytes], str]:
    return {
        re.compile(begin, re.DOTALL | re.IGNORECASE * (begin[:2] == b"--")): name
        for begin, name in names.items()
    }


_COMMANDS = {
    "put it in another one, as by `ffmpeg -i FILE -c copy FILE.mkv`": _compiled(_COPIED),
    "encode it anew, as by `ffmpeg -i FILE -c:v ffv1 -c:a flac FILE.mkv`": _compiled(_ENCODED),
    "export it as ProRes or DNxHR with the camera maker's program": {_RED: "R3D (RED)"},
}


def other_container(head: bytes) -> str | None:
    """Return the reason for a film in a container that is not read, with what to do, or None for other files.

    Args:
        head: First bytes of the file.
    """
    for command, names in _COMMANDS.items():
        for begin, name in names.items():
            if begin.match(head):
                return f"cannot be opened: it is a film in {name}, a container that is not read; {command}"
    return None
