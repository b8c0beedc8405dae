"""Ports for servers of tests that cannot choose one themselves, such as PyTorch's rendezvous."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(among: Iterable[int] = (0,)) -> Iterator[int]:
    """A port that is this block's alone: nobody else is given it between its choice and the start of the server.

    A socket is bound to it and does not listen. Linux lets another one be bound to the same port, and listen, if both
    allow reuse of addresses, as servers do. Two blocks never have the same port, since the first bind is exclusive.

    Args:
        among: Ports to try; 0 is any.
    """
    with socket.socket() as held:
        for port in among:
            try:
                held.bind(("", port))
            except OSError:
                continue
            break
        else:
            raise AssertionError("none of these ports is free")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield held.getsockname()[1]
