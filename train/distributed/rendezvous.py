"""Rendezvous of the ranks of one attempt, separate from earlier attempts."""

import time
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from reelweave.loader.errors import RunError


def meet(store: Store, rank: int, size: int, patience_s: float = 1800.0) -> Store:
    """Return a part of the store that is new to all ranks, once every rank has joined.

    torchrun keeps one store over its restarts, and Gloo looks up its peers' addresses under the same keys each
    time. A rank that restarts early would find the address of a dead peer and wait for half an hour. The number
    of restarts cannot separate attempts, since agents of several nodes count it differently. Therefore each
    rank publishes a token, and rank 0 answers every new token with the name of the attempt.

    Args:
        store: shared by all ranks.
        rank: rank of this process.
        size: number of processes.
        patience_s: timeout for all ranks to join.

    Raises:
        RunError: a rank does not join in time; only on rank 0.
    """
    # A rank that restarts has another token, and so gets an answer of its own.
    if rank > 0:
        token = uuid4().hex
        store.set(f"here/{rank}", token)
        name = str(store.get(f"attempt/{token}"), "utf-8")
        store.set(f"met/{name}/{rank}", "")
        return PrefixStore(name, store)
    # Rank 0 waits until every rank has said that it knows this attempt's name.
    name, deadline = uuid4().hex, time.monotonic() + patience_s
    missing, answered = set(range(1, size)), set()
    while missing:
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)[:8]))
            raise RunError(f"rank {ranks} did not come within {patience_s:g} s; look at its output")
        for other in sorted(missing):
            if store.check([f"met/{name}/{other}"]):
                missing.remove(other)
            elif store.check([f"here/{other}"]):
                token = str(store.get(f"here/{other}"), "utf-8")
                if token not in answered:
                    store.set(f"attempt/{token}", name)
                    answered.add(token)
        time.sleep(0.01)
    return PrefixStore(name, store)
