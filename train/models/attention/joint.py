"""Joint sequence of video and text tokens for their common attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from reelweave.train.models.attention.attend import Attend, Dense
from reelweave.train.models.attention.packed import BlockDiagonal
from reelweave.train.models.attention.segments import Segments


@dataclass(frozen=True, eq=False)
class JointSequence:
    """Layout of the joint sequence: each sample's video, then its text.

    Attributes:
        video: video tokens of each sample of a pack; a single entry for equal samples.
        text: text tokens, likewise.
        both: attention pattern of video and text queries.
        last: attention pattern of video queries alone.
    """

    video: Sequence[int]
    text: Sequence[int]
    both: Attend
    last: Attend

    @classmethod
    def pad(cls, video_tokens: int, text_tokens: int, mask_BM: torch.Tensor | None) -> "JointSequence":
        """Build the layout of a batch of one shape with padded text, all of it valid if there is no mask."""
        attend = Dense(None if mask_BM is None else F.pad(mask_BM, (video_tokens, 0), value=True))
        return cls([video_tokens], [text_tokens], attend, attend)

    @classmethod
    def of_packed(cls, video: Segments, text: Segments) -> "JointSequence":
        """Build the layout of packed samples of any shapes, in the same order in both streams."""
        joint_lengths = [sum(pair) for pair in zip(video.lengths, text.lengths, strict=True)]
        joint = Segments.of(joint_lengths, video.cu_seqlens.device)
        return cls(video.lengths, text.lengths, BlockDiagonal(joint, joint), BlockDiagonal(video, joint))

    def join(self, video_BHLD: torch.Tensor, text_BHMD: torch.Tensor) -> torch.Tensor:
        """Concatenate to the joint sequence, [B, H, L + M, D]."""
        pairs = zip(
            torch.split(video_BHLD, list(self.video), 2),
            torch.split(text_BHMD, list(self.text), 2),
            strict=True,
        )
        return torch.cat([part for pair in pairs for part in pair], dim=2)

    def part(self, joint_BHND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split the joint sequence; inverts `join`."""
        lengths = [length for pair in zip(self.video, self.text, strict=True) for length in pair]
        parts = torch.split(joint_BHND, lengths, dim=2)
        return torch.cat(parts[::2], dim=2), torch.cat(parts[1::2], dim=2)
