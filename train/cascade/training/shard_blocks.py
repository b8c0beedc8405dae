"""Blocks of ranks that shard the DiT's weights (FSDP), and the groups that its cascades may then have.

Ranks of a block gather weights from each other, so that they run the same DiTs in the same order. A DiT therefore runs
on whole blocks. Other modules are whole on every rank and run on any group.
"""

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.placement.topology import Topology
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.parallel.mesh import Mesh


def ranks_of_a_block(config: ParallelConfig, ranks: int) -> int:
    """Return the number of neighbouring ranks that shard the DiT's weights; 1 if they are whole."""
    return Mesh.of(config, ranks).dp_shard if config.shard == "weights" else 1


def check_blocks(block: int, menu: GroupMenu, topology: Topology) -> None:
    """Refuse blocks that do not nest in the groups of DiTs or in nodes.

    Args:
        block: number of ranks of a block.
        menu: groups of cascades.
        topology: cluster topology.

    Raises:
        UsageError: a block crosses nodes or the border of a group, or no degree consists of whole blocks.
    """
    shards = f"parallel.dp_shard={block} with shard=weights and schedule=cascade"
    if topology.gpus_per_node % block:
        raise UsageError(
            f"{shards}: weights are gathered for every block of the model, and {block} ranks do not divide a node of"
            f" {topology.gpus_per_node}: take a divisor"
        )
    nesting = [degree for degree in menu.degrees if degree % block == 0]
    if not nesting:
        raise UsageError(
            f"{shards}: a DiT runs on multiples of {block} ranks, and train.cascade.degrees has none: add {block}"
        )
    for ranks in menu.groups():
        if len(ranks) in nesting and len({rank // block for rank in ranks}) * block != len(ranks):
            raise UsageError(
                f"{shards}: ranks {ranks[0]} to {ranks[-1]}, which cascades of {len(ranks)} may have, share a block of"
                f" {block} with others: take powers of two for dp_shard and train.cascade.degrees"
            )
