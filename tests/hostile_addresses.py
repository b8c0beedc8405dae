"""Addresses that strangers may write, made from a seed: every kind of place, in every spelling that came to mind."""

import random
from collections.abc import Iterator
from urllib.parse import quote

_SCHEMES = (
    "file:",
    "FILE:",
    "http:",
    "https:",
    "hTTp:",
    "s3:",
    "S3:",
    "ftp:",
    "gopher:",
    "data:",
    "jar:",
    "c:",
    "",
    "",
    "",
)
_SLASHES = ("", "/", "//", "///", "////", "\\", "\\\\", "/\\", "//localhost", "//films.example", "//@", "//[")
_USERS = ("", "", "", "me:secret@", "me@", "a:b@c@", "films.example@", "films.example:80@", "u:p]x@[", "\\@")
_HOSTS = (
    *(
        "films.example",
        "FILMS.example.",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "localhost",
    ),
    *(
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "[fe80::1%25lo]",
        "[fd00:ec2::254]",
        "169.254.169.254",
        "10.0.0.7",
    ),
    *(
        "inner.example",
        "both.example",
        "①②⑦.0.0.1",
        "films。example",
        "films.example\\inner.example",
        "[::1",
        "::1",
        "a" * 300,
    ),
    *(
        "a..b",
        ".",
        "%31%32%37.0.0.1",
        "127.0.0.1%00",
        "xn--a",
        "\ud83d\ude00.example",
        "films.example#@inner.example",
        "",
    ),
)
_PORTS = ("", "", "", ":80", ":0", ":99999", ":x", ":", ":-1", ":８０")  # noqa: RUF001
_UP = ("", "", "/", "/../../../../../../../..", "/..\\..\\..", "/%2e%2e/%2e%2e", "/./..", "//", "/.%00/")
_ENDS = (
    "",
    "",
    "",
    "?x=1",
    "#x",
    "?/../x",
    "%00",
    "%",
    "%zz",
    " ",
    "\t",
    "\r\nX: y",
    "\x7f",
    "é",
    "x" * 5000,
)


def hostile_addresses(seed: int, count: int, secret: str) -> Iterator[str]:
    """Yield addresses, one after the other.

    Args:
        seed: same seed, same addresses.
        count: how many.
        secret: path of a file of this machine that none of them may read.
    """
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(
            (secret, secret, secret.replace("/", "\\"), quote(secret, safe=""), "/a.mp4", "a.mp4", "")
        )
        host = rng.choice(_USERS) + rng.choice(_HOSTS) + rng.choice(_PORTS) if rng.random() < 0.6 else ""
        address = (
            rng.choice(_SCHEMES) + rng.choice(_SLASHES) + host + rng.choice(_UP) + path + rng.choice(_ENDS)
        )
        yield _mutated(address, rng) if rng.random() < 0.3 else address


def _mutated(address: str, rng: random.Random) -> str:
    letters = list(address)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(letters) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            letters.insert(place, rng.choice("/\\:@[]?#%&;,. \t\0\x1b\u202eé０"))  # noqa: RUF001
        elif letters and kind == 1:
            letters.pop(min(place, len(letters) - 1))
        elif letters:
            there = min(place, len(letters) - 1)
            letters[there] = (
                f"%{ord(letters[there][0]) % 256:02x}" if kind == 2 else letters[there].swapcase()
            )
    return "".join(letters)
