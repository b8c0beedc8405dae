"""What counts as survived, and how whole inputs are broken."""

import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fuzz.readers import OURS, Reader

MOST_S = 10
MOST_BYTES = 1 << 30
TOKENS = (
    *(
        b"\0",
        b"\xff",
        b"\n",
        b"\r",
        b",",
        b'"',
        b"'",
        b"\\",
        b"{",
        b"[",
        b"]",
        b"}",
        b":",
        b"- ",
        b"&a ",
        b"*a",
        b"<<: ",
    ),
    *(
        b"../",
        b"/",
        b"\x1b[2J",
        b"\xef\xbb\xbf",
        b"nan",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1",
        b"null",
    ),
    *(
        b"true",
        b"9" * 5000,
        b"18446744073709551616",
        b"-9223372036854775809",
        b"0x" + b"f" * 99,
        b"!!int x",
        b"\\u0000",
    ),
    *(
        b"\\ud800",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"a" * 70_000,
        b"2024-13-45",
        b"@",
        b"?",
        b"#",
        b"%00",
        b"http://[::1",
    ),
    *(
        (2**bits - 1).to_bytes(size, order)
        for bits, size in ((31, 4), (32, 4), (63, 8), (64, 8))
        for order in ("little", "big")
    ),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2**31,
        2**63,
        2**64,
        -(2**63),
        1e308,
        0.5,
        "",
        "x",
        "\0",
        "../../x",
        "/etc/passwd",
        "\ud800",
    ),
    *(
        "nan",
        "1e999",
        "9" * 5000,
        "a" * 70_000,
        [],
        [[]],
        {},
        {"a": 1},
        float("nan"),
        float("inf"),
        [0] * 5000,
    ),
)


class Lost(Exception):
    """An input that a reader did not survive; says why."""


def broken(data: bytes, draw: random.Random) -> bytes:
    """Break an input at up to eight places, as bytes or as the JSON it is."""
    if data[:1] in (b"{", b"[") and draw.random() < 0.5:
        try:
            return json.dumps(_other(json.loads(data), draw)).encode()
        except ValueError:
            pass
    held = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at, size = draw.randrange(len(held) + 1), draw.choice((1, 1, 2, 4, 8, 64, 512))
        kind = draw.randrange(7)
        if kind == 0 and held:
            held[min(at, len(held) - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            held[at : at + size] = draw.randbytes(size)
        elif kind == 2:
            del held[at : at + size]
        elif kind == 3:
            held[at:at] = draw.choice(TOKENS)
        elif kind == 4:
            token = draw.choice(TOKENS)
            held[at : at + len(token)] = token
        elif kind == 5:
            held[at:at] = held[at : at + size] * draw.choice((1, 2, 100))
        elif draw.random() < 0.3:
            del held[at:]
    return bytes(held)


def _other(value: Any, draw: random.Random) -> Any:
    """The same JSON with one value or key replaced, dropped or repeated."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        changed = dict(value)
        kind = draw.randrange(8)
        if kind == 0:
            del changed[name]
        elif kind == 1:
            changed[draw.choice(("x", "", "__metadata__", name * 2))] = changed.pop(name)
        else:
            changed[name] = _other(value[name], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        kind = draw.randrange(8)
        if kind == 0:
            return value[:place] + value[place + 1 :]
        if kind == 1:
            return [*value, value[place]]
        return [*value[:place], _other(value[place], draw), *value[place + 1 :]]
    return draw.choice(VALUES)


def survive(reader: Reader, folder: Path, data: bytes) -> str:
    """Give one input to a reader; returns "result", or "error" where it was refused in words.

    Args:
        reader: one of `READERS`.
        folder: empty, for the reader alone; left empty.
        data: of the input.

    Raises:
        Lost: another error, one without words, or one that came too late.
    """
    began = time.process_time()
    try:
        reader.read(folder, data)
        ended = "result"
    except OURS as error:
        if not str(error).strip():
            raise Lost(f"{type(error).__name__} without words") from error
        ended = "error"
    except Lost:
        raise
    except Exception as error:
        raise Lost(f"{type(error).__name__}: {str(error)[:200]}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    if time.process_time() - began > MOST_S:
        raise Lost(f"took {time.process_time() - began:.1f} s")
    return ended


@contextmanager
def alarmed(most_s: float = MOST_S) -> Iterator[Callable[[], None]]:
    """Raise `Lost` in what takes more than ``most_s`` of the processor; the function given starts the clock anew.

    Whoever waits for nothing takes none: what starts a reader ends it after a longer time, too.
    """

    def ring(*_: object) -> None:
        raise Lost(f"took more than {most_s} s")

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_PROF, most_s) and None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


_MAKES = (
    "os.mkdir",
    "os.rename",
    "os.link",
    "os.symlink",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
)
_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "socket.getaddrinfo",
    "pickle.find_class",
)


def watch(folder: Path) -> list[str]:
    """Note everything this process does from now on that a reader must not do; for a process of its own.

    Returns:
        List that grows by what is written outside ``folder``, run, contacted or unpickled.
    """
    inside, noted = str(folder.resolve()), []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
            if (writes or (mode is None and flags & 0o103)) and not str(path).startswith(inside):
                noted.append(f"opened {path} for writing")
        elif event in _MAKES:
            # Those relative to an open folder are shutil.rmtree's, of `survive` itself.
            if not str(arguments[0]).startswith(inside) and arguments[-1] in (-1, 0o777):
                noted.append(f"{event} of {arguments[0]}")
        elif event in _FORBIDDEN:
            noted.append(f"{event} of {str(arguments)[:100]}")

    sys.addaudithook(hook)
    return noted
