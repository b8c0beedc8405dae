"""One of four processes that compute every context-parallel case, each on some of them.

Findings go to OUT/RANK.json: relative errors of this rank's part, against one process with plain attention.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.models.attention.attend import Dense
from reelweave.train.models.attention.segments import Segments
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.exchange import gather
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.ring import Ring
from reelweave.train.parallel.context.traffic import AttentionSize, ring_bytes, ulysses_bytes
from reelweave.train.parallel.context.ulysses import Ulysses
from tests.train.comparison import relative

# What the first compiled graph imports.
IMPORTED_FIRST = ("torch._dynamo.backends.debugging", "torch._inductor.pattern_matcher")
CPU = torch.device("cpu")
HEADS, WIDTH = 12, 8
# Ranks of a group are not its first ones, nor the world's, wherever they could be confused. Rows are rings' blocks.
MESHES = {
    "ulysses 2": [[3, 1]],
    "ulysses 3": [[0, 2, 3]],
    "ulysses 4": [[0, 1, 2, 3]],
    "ring 2": [[3], [1]],
    "ring 3": [[0], [2], [3]],
    "ring 4": [[0], [1], [2], [3]],
    "ring 2 x ulysses 2": [[0, 2], [1, 3]],
}
# Text and video tokens of a joint sequence, where each stream is cut by itself.
TEXT, VIDEO = 3, 19
UNEVEN = {2: (9, 1), 3: (1, 9, 4), 4: (6, 0, 1, 8)}
SAMPLES = {"short and long": [3, 1, 14, 2, 5], "one": [23], "long": [11, 12]}
Case = Callable[[ContextParallel], dict[str, float]]


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compared(attend, part, B: int, L: int, mask_LM=None, dtype=torch.float64) -> dict[str, float]:
    """Errors of a rank's part of outputs and gradients; ``part`` indexes the whole sequence."""
    whole = [random(B, HEADS, L, WIDTH, seed=seed).to(dtype).double().requires_grad_() for seed in range(3)]
    dout_BHLD = random(B, HEADS, L, WIDTH, seed=3)
    expected = F.scaled_dot_product_attention(*whole, attn_mask=mask_LM)
    expected.backward(dout_BHLD)
    parts = [x.detach()[:, :, part].to(dtype).requires_grad_() for x in whole]
    found = attend.attend(*parts)
    assert found.dtype == dtype
    found.backward(dout_BHLD[:, :, part].to(dtype))
    errors = {"out": relative(found, expected[:, :, part])}
    for name, own, all_tokens in zip(("dq", "dk", "dv"), parts, whole, strict=True):
        # A token that is alone in its sample has queries and keys without gradients.
        errors[name] = relative(own.grad, all_tokens.grad[:, :, part], all_tokens.grad)
    return errors


def dense(ranks: ContextParallel, dtype=torch.float64) -> dict[str, float]:
    cut = ranks.cut(23)
    return compared(ranks.attend_dense(cut), cut.part(ranks.rank), 2, 23, dtype=dtype)


def dense_float32(ranks: ContextParallel) -> dict[str, float]:
    return dense(ranks, torch.float32)


def dense_bfloat16(ranks: ContextParallel) -> dict[str, float]:
    return dense(ranks, torch.bfloat16)


def uneven(ranks: ContextParallel) -> dict[str, float]:
    cut = Partition(UNEVEN[ranks.size])
    return compared(ranks.attend_dense(cut), cut.part(ranks.rank), 2, cut.tokens)


def joint(ranks: ContextParallel) -> dict[str, float]:
    """Video, then captions of other lengths, padded behind or before."""
    cut = ranks.cut(VIDEO + TEXT)
    mask_BM = torch.ones(3, TEXT + VIDEO, dtype=torch.bool)
    mask_BM[0, VIDEO + 2 :] = mask_BM[1, VIDEO + 1 :] = mask_BM[2, VIDEO : VIDEO + 2] = False
    attend = ranks.attend_dense(cut, mask_BM)
    return compared(attend, cut.part(ranks.rank), 3, TEXT + VIDEO, mask_BM[:, None, None, :])


def packed(ranks: ContextParallel) -> dict[str, float]:
    errors: dict[str, float] = {}
    for name, lengths in SAMPLES.items():
        L = sum(lengths)
        mask_LM = torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()
        for cut in (ranks.cut(L), Partition((L - ranks.size + 1, *[1] * (ranks.size - 1)))):
            attend = ranks.attend_packed(cut, Segments.of(lengths, CPU))
            found = compared(attend, cut.part(ranks.rank), 1, L, mask_LM)
            errors |= {f"{name} {cut.lengths} {what}": error for what, error in found.items()}
    return errors


def compiled(ranks: ContextParallel) -> dict[str, float]:
    """Ulysses within a compiled block is part of its one graph; a ring breaks it."""
    cut = ranks.cut(10)
    one_graph = dist.get_world_size(ranks.ring) == 1
    attend = torch.compile(ranks.attend_dense(cut).attend, fullgraph=one_graph, backend="aot_eager")
    return compared(SimpleNamespace(attend=attend), cut.part(ranks.rank), 1, 10)


def gathered(ranks: ContextParallel) -> dict[str, float]:
    """Every rank weighs the whole by its own weights; the sum of their losses is differentiated."""
    cut = Partition(UNEVEN[ranks.size])
    whole_BLD = random(2, cut.tokens, 3, seed=0)
    part_BLD = whole_BLD[:, cut.part(ranks.rank)].clone().requires_grad_()
    found_BLD = ranks.gather(part_BLD, cut)
    weights = [random(2, cut.tokens, 3, seed=1 + rank) for rank in range(ranks.size)]
    (found_BLD * weights[ranks.rank]).sum().backward()
    expected_BLD = sum(weights)[:, cut.part(ranks.rank)]
    return {"out": relative(found_BLD, whole_BLD), "gradient": relative(part_BLD.grad, expected_BLD)}


def traffic(ranks: ContextParallel) -> dict[str, float]:
    """Bytes that went, per byte that the formulas predict, less 1."""
    cut = Partition(UNEVEN[ranks.size])
    near, far = dist.get_world_size(ranks.ulysses), dist.get_world_size(ranks.ring)
    ring_rank, ulysses_rank = dist.get_rank(ranks.ring), dist.get_rank(ranks.ulysses)
    whole, share = AttentionSize(2, HEADS, WIDTH, 4), AttentionSize(2, HEADS // near, WIDTH, 4)
    within = Partition(cut.lengths[ring_rank * near : (ring_rank + 1) * near])
    foretold = [
        a + b
        for a, b in zip(
            ulysses_bytes(whole, within, ulysses_rank),
            ring_bytes(share, cut.join(near), ring_rank),
            strict=True,
        )
    ]
    attend = ranks.attend_dense(cut)
    x = [random(2, HEADS, cut.lengths[ranks.rank], WIDTH, seed=0).float().requires_grad_() for _ in range(3)]
    errors = {}
    with Sent() as forward:
        y = attend.attend(*x)
    with Sent() as backward:
        y.backward(torch.ones_like(y))
    for name, sent, bytes_ in zip(("forward", "backward"), (forward, backward), foretold, strict=True):
        errors[f"{name} bytes"] = abs(sent.bytes.total - bytes_)
        errors[f"{name} all-to-alls"] = abs(sent.events.count("exchange") - 4 * (near > 1))
        hops = (far - 1) * (1 if name == "forward" else 2)
        errors[f"{name} hops"] = abs(sent.events.count("hop") - hops)
    return errors


def overlap(ranks: ContextParallel) -> dict[str, float]:
    """A block is sent on before attention is computed on it."""
    cut = ranks.cut(12)
    x = [random(1, HEADS, 4, WIDTH, seed=0).requires_grad_() for _ in range(3)]
    with Sent() as forward:
        y = ranks.attend_dense(cut).attend(*x)
    with Sent() as backward:
        y.backward(torch.ones_like(y))
    steps = ["hop", "attend", "hop", "attend", "attend"]
    # Gradients of a block that is not one's own leave once they are computed.
    back = ["hop", "attend", "hop", "attend", "hop", "attend", "hop"]
    return {"forward": float(forward.events != steps), "backward": float(backward.events != back)}


def copies(ranks: ContextParallel) -> dict[str, float]:
    """Queries, keys, values and outputs are copied once each way, and nothing else is; activations, less 4."""
    cut = ranks.cut(12)
    x = [random(1, 3, HEADS, WIDTH, seed=seed).transpose(1, 2).requires_grad_() for seed in range(3)]
    attend = ranks.attend_dense(cut)
    with Sent() as forward:
        y = attend.attend(*x)
    with Sent() as backward:
        torch.autograd.grad(y, x, torch.ones_like(y))
    return {
        "forward": abs(forward.copied / y.nbytes - 4),
        "backward": abs(backward.copied / y.nbytes - 4),
    }


class Sent(TorchDispatchMode):
    """What goes to other ranks and what is copied, in bytes, and the order of hops, exchanges and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.events, self.copied, self._count = [], 0, count_sent_bytes()

    def __enter__(self):
        self.bytes = self._count.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self._count.__exit__(*raised)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name == "c10d::alltoall_base_":
            self.events.append("exchange")
        elif name == "c10d::send":
            self.events.append("hop")
        elif name.startswith(("c10d::", "_c10d")) and name != "c10d::recv_":
            self.events.append(name)
        elif "flash_attention" in name:
            self.events.append("attend")
        found = function(*args, **(kwargs or {}))
        if name in ("aten::clone", "aten::copy_", "aten::stack", "aten::cat"):
            self.copied += found.nbytes
        return found


def cases() -> Iterator[tuple[str, str, Case]]:
    """Name of the mesh, of the case, and the case."""
    for mesh in MESHES:
        for case in (dense, dense_float32, uneven, joint, packed, gathered, traffic):
            yield mesh, case.__name__, case
    for mesh in ("ulysses 4", "ring 4", "ring 2 x ulysses 2"):
        yield mesh, dense_bfloat16.__name__, dense_bfloat16
    for mesh in ("ulysses 2", "ring 2"):
        yield mesh, compiled.__name__, compiled
    yield "ring 3", overlap.__name__, overlap
    yield "ulysses 4", copies.__name__, copies


def without_rank_1(folder: Path, found: dict[str, dict[str, float]]) -> None:
    """Rank 1 dies; each of the others then waits for it in another way, for so many seconds before it raises."""
    rank, cut = dist.get_rank(), Partition((2, 2))
    pairs = {other: dist.new_group([1, other]) for other in (0, 2, 3)}
    dist.barrier()
    if rank != 1:
        x = [random(1, 2, 2, WIDTH, seed=0) for _ in range(3)]
        name, way = {
            0: ("ring", lambda: Ring(pairs[0], [2], [[2], [2]]).attend(*x)),
            2: ("ulysses", lambda: Ulysses(pairs[2], cut, Dense()).attend(*x)),
            3: ("gather", lambda: gather(x[0], cut.lengths, pairs[3])),
        }[rank]
        began = time.monotonic()
        try:
            way()
        except RuntimeError:
            found[f"a lost rank in {name}"] = {"seconds": time.monotonic() - began}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    # The others cannot take leave of a rank that is no more.
    os._exit(0)


def compute(out: str, chosen: list[list[str]]) -> None:
    """Cases by mesh and name, and the loss of a rank at the end."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank = dist.get_rank()
    groups = {}
    for name, ranks in MESHES.items():
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("ring", "ulysses"))
        if rank in chain(*ranks):
            groups[name] = ContextParallel(mesh.get_group("ring"), mesh.get_group("ulysses"))
    found: dict[str, dict[str, float]] = {}
    for mesh_name, case_name, case in cases():
        if mesh_name in groups and [mesh_name, case_name] in chosen:
            found[f"{mesh_name}: {case_name}"] = case(groups[mesh_name])
    without_rank_1(Path(out), found)
