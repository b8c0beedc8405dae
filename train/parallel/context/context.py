"""Context parallelism over a ring of Ulysses groups: sharded sequences with attention over all of them.

Fang and Zhao, "USP: A Unified Sequence Parallelism Approach", 2024. With one rank in either dimension it
reduces to the other.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from reelweave.loader.errors import UsageError
from reelweave.train.models.attention.attend import Attend, Dense
from reelweave.train.models.attention.packed import BlockDiagonal
from reelweave.train.models.attention.segments import Segments
from reelweave.train.models.transfer import send_one
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.ring import Ring
from reelweave.train.parallel.context.ulysses import Ulysses


@dataclass(frozen=True, eq=False)
class ContextParallel:
    """Ranks that share sequences, and the attention they compute together.

    Sequences are sharded in the order ring, then Ulysses: ranks of a Ulysses group, best on one node, hold
    adjacent parts. With a mesh of dimensions (ring, ulysses): ``ContextParallel(mesh.get_group("ring"),
    mesh.get_group("ulysses"))``.

    Attributes:
        ring: ranks that pass blocks of keys and values.
        ulysses: ranks that exchange heads.
        together: all ranks, in the order ring, then Ulysses; needed to exchange whole tokens (ST-DiT).
    """

    ring: dist.ProcessGroup
    ulysses: dist.ProcessGroup
    together: dist.ProcessGroup | None = None

    @cached_property
    def size(self) -> int:
        """Number of ranks that share a sequence."""
        return dist.get_world_size(self.ring) * dist.get_world_size(self.ulysses)

    @cached_property
    def near(self) -> int:
        """Number of ranks that exchange heads."""
        return dist.get_world_size(self.ulysses)

    @cached_property
    def rank(self) -> int:
        """Index of the local part of the sequence."""
        return dist.get_rank(self.ring) * dist.get_world_size(self.ulysses) + dist.get_rank(self.ulysses)

    @cached_property
    def group(self) -> dist.ProcessGroup:
        """All ranks that share a sequence, in the order of the parts.

        Raises:
            ValueError: there are several rings, and `together` is missing or in another order.
        """
        near = dist.get_world_size(self.ulysses)
        if self.size == near:
            return self.ulysses
        if near == 1:
            return self.ring
        first = dist.get_rank(self.ring) * near
        together = [] if self.together is None else dist.get_process_group_ranks(self.together)
        if self.together is None or together[first : first + near] != dist.get_process_group_ranks(
            self.ulysses
        ):
            raise ValueError(
                "ring x Ulysses needs its ranks as one group, too: Ulysses groups one after another"
            )
        return self.together

    def cut(self, tokens: int) -> Partition:
        """Return the partition of a sequence over the ranks.

        Raises:
            UsageError: there are fewer tokens than ranks.
        """
        if tokens < self.size:
            raise UsageError(
                f"{tokens} tokens cannot be cut over {self.size} context-parallel ranks; use fewer ranks"
            )
        return Partition.even(tokens, self.size)

    def attend_dense(
        self,
        cut: Partition,
        mask_BM: torch.Tensor | None = None,
        queries: Partition | None = None,
        device: torch.device | None = None,
    ) -> Attend:
        """Return attention of every token to every valid token of its sample.

        Args:
            cut: partition of the sequence.
            mask_BM: mask of valid keys of the whole sequence, bool, at least one per sample; the same on every
                rank. On the CPU, or on the device, which the host then waits for. None: all.
            queries: partition of the querying tokens; None: all tokens.
            device: device of the tokens; None: that of the mask.
        """
        if mask_BM is not None and device is None:
            device = mask_BM.device
        if dist.get_world_size(self.ring) == 1:
            valid_BM = None if mask_BM is None or device is None else send_one(mask_BM, device)
            return self._over_heads(cut, Dense(valid_BM), queries)
        blocks = self._blocks(cut)
        ring_rank = dist.get_rank(self.ring)
        asking = self._blocks(queries or cut).lengths[ring_rank]
        if mask_BM is None:
            return self._over_heads(cut, Ring(self.ring, [asking], [[n] for n in blocks.lengths]), queries)
        masks = torch.split(mask_BM, list(blocks.lengths), dim=1)
        keys_PB = torch.stack([mask.sum(dim=1) for mask in masks]).tolist()
        ring = Ring(self.ring, [asking] * len(mask_BM), keys_PB)
        valid_tokens = send_one(masks[ring_rank].flatten().nonzero()[:, 0], device or mask_BM.device)
        return self._over_heads(cut, _Unpadded(ring, valid_tokens), queries)

    def attend_packed(
        self, cut: Partition, samples: Segments, queries: tuple[Partition, Segments] | None = None
    ) -> Attend:
        """Return attention within each sample of a packed sequence.

        Args:
            cut: partition of the sequence.
            samples: segments of the whole sequence.
            queries: partition and segments of the querying tokens; None: all tokens.
        """
        asking, of_samples = queries or (cut, samples)
        only = None if queries is None else asking
        if dist.get_world_size(self.ring) == 1:
            return self._over_heads(cut, BlockDiagonal(of_samples, samples), only)
        ring_rank = dist.get_rank(self.ring)
        queries_n = self._blocks(asking).counts(of_samples.lengths)[ring_rank]
        keys_Pn = self._blocks(cut).counts(samples.lengths)
        return self._over_heads(cut, Ring(self.ring, queries_n, keys_Pn), only)

    def gather(self, x: torch.Tensor, cut: Partition, dim: int = 1) -> torch.Tensor:
        """Gather the whole sequence on every rank; gradients as in `exchange.gather`."""
        block = gather(x, self._near(cut).lengths, self.ulysses, dim)
        return gather(block, self._blocks(cut).lengths, self.ring, dim)

    def _over_heads(self, cut: Partition, inner: Attend, queries: Partition | None) -> Attend:
        if dist.get_world_size(self.ulysses) == 1:
            return inner
        return Ulysses(self.ulysses, self._near(cut), inner, None if queries is None else self._near(queries))

    def _blocks(self, cut: Partition) -> Partition:
        """Return the part of each Ulysses group, the unit that travels around the ring."""
        return cut.join(dist.get_world_size(self.ulysses))

    def _near(self, cut: Partition) -> Partition:
        """Return the parts within this rank's Ulysses group."""
        size = dist.get_world_size(self.ulysses)
        start = dist.get_rank(self.ring) * size
        return Partition(cut.lengths[start : start + size])


@dataclass(frozen=True, eq=False)
class _Unpadded:
    """Ring attention that sends valid keys only, by treating a padded batch as a packed sequence."""

    ring: Ring
    valid_tokens: torch.Tensor

    def attend(self, q_BHLD: torch.Tensor, k_BHMD: torch.Tensor, v_BHMD: torch.Tensor) -> torch.Tensor:
        B, H, L, D = q_BHLD.shape
        k_1HND, v_1HND = (_pack_batch(x).index_select(2, self.valid_tokens) for x in (k_BHMD, v_BHMD))
        y_1HND: torch.Tensor = self.ring.attend(_pack_batch(q_BHLD), k_1HND, v_1HND)
        return y_1HND.view(H, B, L, D).transpose(0, 1)


def _pack_batch(x_BHLD: torch.Tensor) -> torch.Tensor:
    """Return a batch as one sequence, [1, H, B * L, D]."""
    return x_BHLD.transpose(0, 1).flatten(1, 2)[None]
