"""Decoder whose ranks share the tiles of all videos."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from reelweave.loader.errors import first_line
from reelweave.train.distributed.world import RankError, World
from reelweave.train.models.encoders.decode_tiles import Tile, TileLayout
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.sampling.decode.assignment import assign, efficiency


@dataclass(frozen=True, eq=False)
class TiledDecoder:
    """`GroupDecoder` whose ranks decode different tiles; the first rank blends them.

    Each video is decoded alone, and has the same bits on any number of ranks. A rank that fails ends all in a
    `RunError` before any waits for its tiles.

    Attributes:
        tokenizer: tokenizer, on every rank.
        world: ranks that hold the latents.
        layout: tiles; None: those of the tokenizer's `decode`, to the same bits for the video alone.
        ranks: number of ranks that decode, the first ones; None: all.
    """

    tokenizer: Tokenizer
    world: World
    layout: TileLayout | None = None
    ranks: int | None = None

    @torch.no_grad()
    def __call__(self, latents_BCTHW: torch.Tensor) -> torch.Tensor | None:
        videos, size = len(latents_BCTHW), tuple(latents_BCTHW.shape[2:])
        layout = self._layout
        tiles, owners = layout.tiles(size), self.owners(videos, size)
        is_whole = layout.is_whole(size)
        decode = self.tokenizer.decode if is_whole else self.tokenizer.decode_tile
        decoded: list[torch.Tensor | None] = [None] * len(owners)
        local_units = [unit for unit, owner in enumerate(owners) if owner == self.world.rank]
        failure: RuntimeError | None = None
        try:
            for unit in local_units:
                video, tile = divmod(unit, len(tiles))
                decoded[unit] = decode(tiles[tile].of(latents_BCTHW[video : video + 1]))
        except RuntimeError as error:  # of which memory is the usual one
            failure = error
        self._agree(failure)
        finished_videos = []
        like = None if decoded[0] is None else decoded[0].new_empty((1, decoded[0].shape[1], 0, 0, 0))
        for video in range(videos):
            units = slice(video * len(tiles), (video + 1) * len(tiles))
            parts = self._collect(decoded[units], owners[units], layout, tiles, like)
            decoded[units] = [None] * len(tiles)
            if parts is not None:
                finished_videos.append(
                    parts[0] if is_whole else self.tokenizer.finish(layout.assemble(parts, size))
                )
        return torch.cat(finished_videos) if finished_videos else None

    def owners(self, videos: int, size: tuple[int, ...]) -> list[int]:
        """Return the rank of every tile, video by video."""
        return assign(self._costs(videos, size), self.decoding_ranks)

    def efficiency(self, videos: int, size: tuple[int, ...]) -> float:
        """Return the share of time in which ranks decode, by the latents of their tiles."""
        return efficiency(self._costs(videos, size), self.owners(videos, size), self.decoding_ranks)

    @property
    def _layout(self) -> TileLayout:
        return self.layout or self.tokenizer.decode_layout()

    @property
    def decoding_ranks(self) -> int:
        """Number of ranks that decode."""
        return min(self.ranks or self.world.size, self.world.size)

    def _costs(self, videos: int, size: tuple[int, ...]) -> list[int]:
        return [math.prod(tile.size) for tile in self._layout.tiles(size)] * videos

    def _agree(self, failure: RuntimeError | None) -> None:
        """Raise on every rank if one failed, before any waits for its tiles."""
        rank_errors = self.world.gather_text(first_line(failure) if failure else "")
        if failure:
            raise RankError(
                f"the decode failed: {first_line(failure)}; where memory is short, take smaller tiles"
                " (tokenizer.tiling=true, or a tile size)",
                self.world.global_rank(self.world.rank),
            ) from failure
        if lost := {rank: text for rank, text in enumerate(rank_errors) if text}:
            among_these, text = next(iter(lost.items()))
            rank = self.world.global_rank(among_these)
            raise RankError(
                f"rank {rank} of {dist.get_world_size()} failed to decode its tiles: {text}", rank
            )

    def _collect(
        self,
        decoded: list[torch.Tensor | None],
        owners: list[int],
        layout: TileLayout,
        tiles: list[Tile],
        like: torch.Tensor | None,
    ) -> list[torch.Tensor] | None:
        """Return all tiles of a video on the first rank; other ranks send theirs and return None."""
        parts, transfers = list(decoded), []
        first = self.world.rank == 0
        for index, owner in enumerate(owners):
            part = parts[index]
            if first and part is None:
                assert like is not None  # the first rank has the largest tile
                part = parts[index] = like.new_empty((1, like.shape[1], *layout.decoded_size(tiles[index])))
                transfers.append(self._transfer(dist.irecv, part, owner))
            elif part is not None and not first:
                transfers.append(self._transfer(dist.isend, part.contiguous(), 0))
        for work in dist.batch_isend_irecv(transfers) if transfers else ():
            work.wait()
        return [part for part in parts if part is not None] if first else None

    def _transfer(self, way: Any, part: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(way, part, group=self.world.group, group_peer=peer)
