"""FFmpeg's description of a file in words, which holds what PyAV hands out otherwise nowhere."""

from __future__ import annotations

import re
from threading import Lock

import av
from av.container import Container

_STREAM = re.compile(r"^  Stream #0:(\d+)", re.MULTILINE)
_PROGRAMME = re.compile(r"^  (?:Program (\d+)|No Program)[ \n].*$|^  Stream #0:(\d+)", re.MULTILINE)
_PICTURES = re.compile(r"^  Stream #0:(\d+).*?: Video: ", re.MULTILINE)
_LOGGING = Lock()


def described_stream(container: Container, index: int) -> str:
    """Return what the description says of one stream, "" where it names none."""
    text = _describe_container(container)
    begins = [(int(match[1]), match.end()) for match in _STREAM.finditer(text)]
    ends = [begin for _, begin in begins[1:]] + [len(text)]
    for (stream_index, begin), end in zip(begins, ends, strict=True):
        if stream_index == index:
            return text[begin:end]
    return ""


def programmes_of(container: Container) -> list[set[int]]:
    """Return the indices of the streams of each programme, of containers that have any, such as MPEG-TS."""
    programmes: list[set[int]] = []
    members: set[int] | None = None
    for match in _PROGRAMME.finditer(_describe_container(container)):
        if match[2] is None:
            members = set() if match[1] is not None else None
            programmes += [] if members is None else [members]
        elif members is not None:
            members.add(int(match[2]))
    return programmes


def count_pictures(container: Container) -> int:
    """Return the number of streams of pictures, with those that were met while the file was read."""
    return len(set(_PICTURES.findall(_describe_container(container))))


def _describe_container(container: Container) -> str:
    with _LOGGING:  # the level is one for the whole process
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            return str(container.dumps_format())  # type: ignore[attr-defined] # missing in its stubs
        finally:
            av.logging.set_level(level)
