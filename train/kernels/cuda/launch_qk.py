"""Names and geometry of the kernels of csrc/qk_norm.cu, as pure functions of the numbers in csrc/rules.h.

One launch serves queries and keys: the first blocks walk the queries, the others the keys, `rows_per_block` rows each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.cuda.launch import DTYPE_BYTES, VECTOR_BYTES, WARP, Direction, Dtype
from reelweave.train.kernels.cuda.rules import constant, struct

PAIR_ELEMENTS = constant("PairElements")

HeadStrides, Heads = struct("HeadStrides"), struct("Heads")
QkNormArgs, QkReduceArgs = struct("QkNormArgs"), struct("QkReduceArgs")


@dataclass(frozen=True)
class PairLaunch:
    """One launch: `threads` a block, `lanes` threads for a pair of vectors each make a head.

    `shared_bytes` is dynamic shared memory: above 48 KB ask for it first.
    """

    threads: int
    lanes: int
    shared_bytes: int


def pair_launch(
    direction: Direction,
    heads: int,
    width: int,
    x: Dtype,
    across_heads: bool,
    halves_rotate: bool,
    aligned: bool,
    shared_limit: int,
) -> PairLaunch | None:
    """The launch that serves rows of `heads` heads, or None where the kernels do not.

    They hold a row in registers: up to 8192 elements. Wider ones, and heads that do not divide into 16 bytes, belong
    to no model that trains for long; the reference serves them.

    Args:
        direction: The pass.
        heads: Heads of a token; the larger number of q's and k's.
        width: Width of a head, d.
        x: Type of the activations.
        across_heads: The heads of a token are normed together.
        halves_rotate: There is a rotation, of channels (i, i + d / 2).
        aligned: Every pointer, token, head and row of angles begins at a multiple of 16 bytes.
        shared_limit: Shared memory one block may ask for (sharedMemPerBlockOptin), in bytes.
    """
    size = VECTOR_BYTES // DTYPE_BYTES[x]
    vectors, rest = divmod(width, size)
    if not aligned or not vectors or rest or (halves_rotate and vectors % 2):
        return None
    lanes = -(-vectors // 2)
    if not across_heads:
        lanes = 1 << (lanes - 1).bit_length()
        if lanes > WARP:
            return None
    pairs = PAIR_ELEMENTS // (2 * size)
    threads = -(-heads * lanes // (pairs * WARP)) * WARP
    row_bytes = DTYPE_BYTES[x] * (2 if direction == "backward" else 1)
    shared_bytes = launch.ring_bytes(row_bytes, PAIR_ELEMENTS, threads)
    fits = threads <= constant("PairThreads") and shared_bytes <= shared_limit
    return PairLaunch(threads, lanes, shared_bytes) if fits else None


def rows_per_block(q_rows: int, k_rows: int, resident: int) -> int:
    """Consecutive rows a block walks, of q or of k, when `resident` blocks fit the device at once.

    Args:
        q_rows: Tokens of the queries, B L.
        k_rows: Tokens of the keys, B M.
        resident: Blocks; q and k end in a block of their own each, hence one less counts.
    """
    return launch.rows_per_block(q_rows + k_rows, max(1, resident - 1))


def head_strides(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int] | None:
    """Elements between samples, tokens and heads of [B, L, H, d]; None where channels lie apart and a copy is due.

    A dimension of one has none: what its stride says is never walked, and must not spoil the alignment.
    """
    if strides[3] != 1 and sizes[3] != 1:
        return None
    sample, token, head = (
        0 if size == 1 else stride for size, stride in zip(sizes[:3], strides[:3], strict=True)
    )
    return sample, token, head


def kernel_name(direction: Direction, across_heads: bool, x: Dtype) -> str:
    """Name of a kernel. The second stage is `reduce_qk_weights_` and the type of the weights."""
    return f"qk_norm_{direction}_{'across' if across_heads else 'head'}_{x}"
