"""Ranks of a sequence-parallel group: errors of their gradients against one process's."""

import json
from pathlib import Path

import torch

from reelweave.train.distributed.world import World, join
from reelweave.train.kernels.gate_norm_modulate.operator import gate_residual_norm_modulate
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate
from reelweave.train.kernels.sequence_parallel import clip_groups, frame_groups
from tests.train.kernels.kernel_cases import error

B, F, L, D, E = 2, 3, 12, 8, 5
CUTS = {1: (0, L), 2: (0, 5, L), 3: (0, 3, 10, L)}  # two of them inside a frame of 4 tokens
PACK = (0, 4, 4, 6, 11, L)  # groups that straddle the cuts, one empty
FORMS = ("sample", "frame", "token", "packed")


class Problem:
    """A chain of both operators whose modulation a linear layer makes from a condition; the same on every rank."""

    def __init__(self, form: str) -> None:
        draw = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.form, self.samples = form, 1 if form == "packed" else B
        rows = {"sample": (B,), "frame": (B, F), "token": (B, L), "packed": (len(PACK) - 1,)}[form]
        self.condition = normal(*rows, E)
        self.tokens = [normal(self.samples, L, D) for _ in range(2)]
        self.upstream = [normal(self.samples, L, D) for _ in range(2)]
        self.shared = {
            "linear": normal(3 * D, E),
            "offset": normal(3 * D),
            "weight": normal(D),
            "bias": normal(D),
        }

    def gradients(self, start: int, end: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Of the tokens from start to end, [B, l, D]; and of the weights and of the modulation, from these tokens."""
        shared = {name: x.clone().requires_grad_() for name, x in self.shared.items()}
        residual, y = tokens = [x[:, start:end].clone().requires_grad_() for x in self.tokens]
        rows = torch.nn.functional.linear(self.condition, shared["linear"], shared["offset"])
        rows.retain_grad()
        gate, scale, shift = (self.given(part, start, end) for part in rows.chunk(3, dim=-1))
        groups, affine = self.groups(start, end), {"weight_D": shared["weight"], "bias_D": shared["bias"]}
        inputs = (x if groups is None else x.reshape(1, -1, D) for x in (residual, y))
        h, out = gate_residual_norm_modulate(*inputs, gate, scale, shift, cu_seqlens=groups, **affine)
        out = layer_norm_modulate(out.sin(), scale, shift, rms=True, cu_seqlens=groups, **affine)
        upstream = [x[:, start:end].reshape(h.shape) for x in self.upstream]
        torch.autograd.backward([h, out], upstream)
        whole = {"residual": tokens[0].grad, "y": tokens[1].grad}
        return whole, {"modulation": rows.grad} | {name: x.grad for name, x in shared.items()}

    def given(self, rows: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """The modulation as the operators of this rank take it."""
        if self.form == "token":
            return rows[:, start:end]
        return rows.flatten(0, 1) if self.form == "frame" else rows

    def groups(self, start: int, end: int) -> torch.Tensor | None:
        if self.form == "packed":
            return clip_groups(torch.tensor(PACK, dtype=torch.int32), start, end)
        return frame_groups(B, F, L, start, end) if self.form == "frame" else None


def reduced(part: dict[str, torch.Tensor], world: World, how: str) -> dict[str, torch.Tensor]:
    """Over the group: a sum, and two mistakes."""
    found = {name: x.clone() for name, x in part.items()}
    for _ in range(2 if how == "two sums" else 1):
        world.sum_(list(found.values()))
    return {name: x / world.size if how == "mean" else x for name, x in found.items()}


def errors(form: str, world: World) -> dict[str, dict[str, float]]:
    start, end = CUTS[world.size][world.rank : world.rank + 2]
    whole, exact = Problem(form).gradients(0, L)
    mine, part = Problem(form).gradients(start, end)
    tokens = torch.tensor([error(mine[name], whole[name][:, start:end]) for name in whole])
    world.sum_([tokens])
    found = {"tokens": dict(zip(whole, tokens.tolist(), strict=True))}
    for how in ("sum", "mean", "two sums"):
        total = reduced(part, world, how)
        found[how] = {name: error(total[name], x) for name, x in exact.items()}
    found["alone"] = {name: error(part[name], x) for name, x in exact.items()}
    return found


def report(out: str) -> None:
    """Rank 0 writes what the group found, as JSON."""
    with join("cpu") as world:
        found = {form: errors(form, world) for form in FORMS}
        if world.rank == 0:
            Path(out).write_text(json.dumps(found))
