"""Inputs for the norm of queries and keys, and its definition in float64."""

import torch

from tests.train.kernels.kernel_cases import EPS


def case(
    B=2, L=6, H=3, d=8, M=None, G=None, dtype=torch.float32, weights="head", rotation="half", per_sample=False
):
    """q and k as views of one packed projection (of two where their shapes differ), and the keywords of `qk_norm`."""
    M, G = M or L, G or H
    draw = torch.Generator().manual_seed(B * L * H * d)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    packed = [(normal(B, tokens, 3, heads, d) * 2 + 1).to(dtype) for tokens, heads in ((L, H), (M, G))]
    q, k = packed[0][:, :, 0], packed[0 if (L, H) == (M, G) else 1][:, :, 1]
    how = {"across_heads": None if weights in ("head", "all") else weights == "bare across"}
    if how["across_heads"] is None:
        how |= {
            name: (normal(heads * d if weights == "all" else d) + 1).to(dtype)
            for name, heads in (("weight_q", H), ("weight_k", G))
        }
    if rotation != "none":
        angles = normal(*((B,) if per_sample else ()), L, d // 2).float()
        how |= {"rotation": (angles.cos(), angles.sin()), "interleaved": rotation == "interleaved"}
    return (q, k), how


def defined(q, k, weight_q=None, weight_k=None, rotation=None, across_heads=None, interleaved=False):
    """As the words say: the rotation by complex numbers."""
    outs = []
    for x, weight in ((q, weight_q), (k, weight_k)):
        d = x.shape[3]
        across = across_heads if weight is None else len(weight) != d
        rows = x.flatten(2) if across else x
        n = rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt()
        n = (n if weight is None else n * weight).reshape(x.shape)
        if rotation is not None:
            pairs = n.reshape(*n.shape[:3], *((d // 2, 2) if interleaved else (2, d // 2)))
            turned = torch.complex(*pairs.unbind(-1 if interleaved else -2))
            turned = turned * torch.complex(*(part.double() for part in rotation)).unsqueeze(-2)
            n = torch.stack([turned.real, turned.imag], -1 if interleaved else -2).reshape(x.shape)
        outs.append(n)
    return outs
