"""Candidate places: a few sets of GPUs per cascade that are worth comparing."""

from collections.abc import Collection, Iterable, Iterator

from reelweave.train.cascade.placement.topology import Topology

_SEEDS = 4  # nodes from which a group over several nodes is grown


class CandidateSites:
    """Generator of candidate GPU sets, best kinds first; `levels` ranks them."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._closest: dict[tuple[tuple[int, ...], int], list[frozenset[int]]] = {}

    def proposals(
        self, degree: int, open_gpus: dict[int, list[int]], liked: Collection[int]
    ) -> Iterator[list[int]]:
        """Yield sets of ``degree`` GPUs, rising, within one node if possible.

        Args:
            degree: number of GPUs.
            open_gpus: free GPUs as numbers within their nodes, rising, by node.
            liked: preferred GPUs, such as those of the inputs' cascades.
        """
        favourites = {node: set(node_gpus) for node, node_gpus in self._topology.by_node(liked).items()}
        fitting_nodes = [
            (len(node_gpus), node) for node, node_gpus in open_gpus.items() if len(node_gpus) >= degree
        ]
        groups: Iterable[list[int]]
        if fitting_nodes:
            liked_first = [node for node in favourites if len(open_gpus.get(node, ())) >= degree]
            groups = [
                [node]
                for node in dict.fromkeys(
                    (*liked_first, min(fitting_nodes)[1], *self._brokers(fitting_nodes))
                )
            ]
        else:
            groups = self._across(degree, open_gpus, favourites)
        for group in groups:
            yield self._choose_gpus(degree, {node: open_gpus[node] for node in group}, favourites)

    def _brokers(self, fitting_nodes: Iterable[tuple[int, int]]) -> list[int]:
        """Return the tightest node with a broker, unless all nodes have one."""
        brokers = self._topology.brokers
        best = min(
            (candidate for candidate in fitting_nodes if brokers is not None and candidate[1] in brokers),
            default=None,
        )
        return [best[1]] if best else []

    def _across(
        self,
        degree: int,
        open_gpus: dict[int, list[int]],
        favourites: dict[int, set[int]],
    ) -> Iterator[list[int]]:
        """Yield sets of as few nodes as possible, with space for even shares if possible."""
        # How many of the emptiest nodes hold the degree.
        room = {node: len(node_gpus) for node, node_gpus in open_gpus.items()}
        fullest = sorted(room, key=lambda node: (-room[node], node))
        count = held = 0
        while held < degree:
            held += room[fullest[count]]
            count += 1
        # Nodes with room for an even share; without enough of them, the emptiest.
        pool = [node for node in fullest if room[node] >= -(-degree // count)]
        if len(pool) < count:
            pool = fullest[:count]
        # From each of some first nodes, preferred ones before, add those with most open GPUs at its indices.
        seeds = [node for node in favourites if node in pool]
        seeds += sorted(pool, key=lambda node: (room[node], node))
        share = -(-degree // count)
        for seed in list(dict.fromkeys(seeds))[:_SEEDS]:
            group, common = [seed], set(open_gpus[seed])
            while len(group) < count:
                nearest = max(
                    (node for node in pool if node not in group),
                    key=lambda node: (
                        min(share, len(common.intersection(open_gpus[node]))),
                        node in favourites,
                        -room[node],
                        -node,
                    ),
                )
                group.append(nearest)
                common.intersection_update(open_gpus[nearest])
            yield group

    def _choose_gpus(
        self, degree: int, open_gpus: dict[int, list[int]], favourites: dict[int, set[int]]
    ) -> list[int]:
        """Return GPUs of these nodes in even shares, aligned to the same numbers where free."""
        shares = even_shares(degree, {node: len(node_gpus) for node, node_gpus in open_gpus.items()})
        aligned: frozenset[int] = frozenset()
        if len(shares) > 1:
            common = set.intersection(*(set(node_gpus) for node_gpus in open_gpus.values()))
            aligned_count = min(len(common), min(shares.values()))
            liked = set().union(*(favourites.get(node, set()) for node in shares))
            best = self._closest_of(tuple(sorted(common)), aligned_count)
            aligned = max(best, key=lambda group: len(group & liked))
        size, chosen = self._topology.gpus_per_node, []
        for node, share in shares.items():
            fond = favourites.get(node, set())
            ordered = sorted(open_gpus[node], key=lambda gpu: (gpu not in aligned, gpu not in fond, gpu))
            chosen += [node * size + gpu for gpu in ordered[:share]]
        return sorted(chosen)

    def _closest_of(self, gpus: tuple[int, ...], count: int) -> list[frozenset[int]]:
        """Return the sets of a node's GPUs with the least distance to their cards, grown greedily from each."""
        if (gpus, count) not in self._closest:
            far = self._topology.cumulative_distance
            grown: dict[frozenset[int], int] = {}
            for first in gpus if count else ():
                group: tuple[int, ...] = (first,)
                while len(group) < count:
                    wider = [(*group, gpu) for gpu in gpus if gpu not in group]
                    group = min(wider, key=lambda wide: (far(tuple(sorted(wide))), wide[-1]))
                grown[frozenset(group)] = far(tuple(sorted(group)))
            min_steps = min(grown.values(), default=0)
            closest = [group for group, steps in grown.items() if steps == min_steps]
            self._closest[gpus, count] = closest or [frozenset()]
        return self._closest[gpus, count]


def even_shares(degree: int, room: dict[int, int]) -> dict[int, int]:
    """Return each node's number of GPUs, as even as their free GPUs allow.

    Args:
        degree: total number of GPUs.
        room: free GPUs of each node; enough in total.
    """
    shares, remaining = {}, degree
    for index, node in enumerate(sorted(room, key=lambda node: (room[node], node))):
        shares[node] = min(room[node], remaining // (len(room) - index))
        remaining -= shares[node]
    return {node: shares[node] for node in sorted(room)}
