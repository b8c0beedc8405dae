"""How the kernels of csrc/qk_norm.cu are launched: names, geometry and argument blocks, as pure functions.

One launch serves queries and keys: the first blocks walk the queries, the others the keys, `rows_per_block` rows each.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from train.kernels.cuda import launch
from train.kernels.cuda.launch import DTYPE_BYTES, VECTOR_BYTES, WARP, Direction, Dtype

LARGEST_BLOCK = 512
PAIR_ELEMENTS = 16
"""What a thread holds of a row, in pairs of vectors: one pair of 2-byte elements, two of float32."""
STREAMS: dict[Direction, int] = {"forward": 1, "backward": 2}


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
        heads: Of a token; the larger number of q's and k's.
        width: Of a head, d.
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
    streams = STREAMS[direction]
    stages = 2 if DTYPE_BYTES[x] * streams > 4 else 3
    shared_bytes = stages * streams * PAIR_ELEMENTS * DTYPE_BYTES[x] * threads
    fits = threads <= LARGEST_BLOCK and shared_bytes <= shared_limit
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


class HeadStrides(ctypes.Structure):
    """`reel::HeadStrides`, in elements."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("sample", "token", "head"))


class Heads(ctypes.Structure):
    """`reel::Heads`: queries or keys."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "dy", "y", "rstd", "weight", "partials")),
        *((name, HeadStrides) for name in ("x_strides", "dy_strides")),
        *((name, ctypes.c_longlong) for name in ("rows", "tokens")),
        ("heads", ctypes.c_int),
    )


class QkNormArgs(ctypes.Structure):
    """`reel::QkNormArgs`; `side` is q, then k."""

    _fields_ = (
        ("side", Heads * 2),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        *((name, ctypes.c_longlong) for name in ("rotation_sample", "rotation_token")),
        *((name, ctypes.c_longlong) for name in ("rows_per_cta", "q_blocks")),
        *((name, ctypes.c_int) for name in ("width", "lanes", "interleaved", "float_weights")),
        ("eps", ctypes.c_float),
    )


class QkReduceArgs(ctypes.Structure):
    """`reel::QkReduceArgs`: grid (2, ceil(columns / 32)), block `launch.REDUCE_BLOCK`."""

    _fields_ = (
        ("partials", ctypes.c_void_p * 2),
        ("dweight", ctypes.c_void_p * 2),
        ("blocks", ctypes.c_longlong * 2),
        ("columns", ctypes.c_int * 2),
    )
