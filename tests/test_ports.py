"""A reserved port is its holder's alone, until a server listens there, and afterwards."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.ports import reserved_port


def test_a_rendezvous_listens_on_a_reserved_port_again_and_again() -> None:
    with reserved_port() as port:
        for number in range(3):
            store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
            store.set("key", str(number))
            assert TCPStore("127.0.0.1", port, is_master=False).get("key") == str(number).encode()
            del store


@pytest.mark.parametrize("reuse", [0, 1])
def test_a_reserved_port_is_given_to_nobody_else(reuse: int) -> None:
    with reserved_port() as port, ExitStack() as others:
        with pytest.raises(AssertionError, match="none of these ports"):
            others.enter_context(reserved_port([port]))
        given = set()
        for _ in range(200):
            other = others.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            other.bind(("127.0.0.1", 0))
            given.add(other.getsockname()[1])
        assert port not in given
    with reserved_port([port]) as again:
        assert again == port


def test_no_test_gives_a_port_away_before_it_is_used() -> None:
    """A port of a socket that is closed again may be anybody's. Those of the test and the bench named here listen."""
    tests = Path(__file__).parent
    choosing = {
        str(path.relative_to(tests)) for path in tests.rglob("*.py") if "getsockname" in path.read_text()
    }
    assert choosing == {
        "ports.py",
        "test_ports.py",
        "loader/storage/test_storage_s3.py",
        "bench/caption_endpoint.py",
    }
