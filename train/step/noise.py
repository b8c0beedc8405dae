"""Noise of training samples, drawn on the device, with the same bits on every device.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") numbers every value, so that any
part can be drawn alone. The normal numbers (Box and Muller 1958) come from sums, products, quotients and square roots
of float64 alone. IEEE 754 fixes those to the last bit, where logarithms and cosines of two libraries differ.
"""

import math
from collections.abc import Sequence

import torch

from reelweave.train.models.transfer import send_one
from reelweave.train.models.uncompiled import uncompiled
from reelweave.train.objectives.draw import sample_key

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
# Counters at a time: what a processor's cache holds, and what bounds a GPU's memory (some 200 MB).
_CPU_COUNTERS = 1 << 14
_DEVICE_COUNTERS = 1 << 21


def draw_noise(
    seed: int, keys: Sequence[str], passes: Sequence[int], shape: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Draw standard normal noise of each sample as a function of (seed, key, pass) and position.

    A sample draws the same bits on any rank, in any batch, on any device and after a resume. The host never waits.

    Args:
        seed: seed of the run.
        keys: keys of the samples, length B.
        passes: number of earlier draws of each sample, length B.
        shape: (C, T, H, W) of one sample.
        device: device that draws.

    Returns:
        Noise in torch's default dtype, [B, C, T, H, W].
    """
    words = [sample_key(seed, key, passed) for key, passed in zip(keys, passes, strict=True)]
    noise_BN: torch.Tensor = normals(words, math.prod(shape), device)
    return noise_BN.view(len(words), *shape)


# A compiler may fuse a product and a sum into one rounding, which changes bits.
@uncompiled
def normals(keys: Sequence[int], count: int, device: torch.device) -> torch.Tensor:
    """Return standard normal numbers 0 to ``count - 1`` of each 64-bit key, [B, count], in torch's default dtype."""
    keys_R2B1 = send_one(round_keys(keys), device)
    found_BN = torch.empty(len(keys), count, dtype=torch.get_default_dtype(), device=device)
    counters = -(-count // 4)
    size = max((_CPU_COUNTERS if device.type == "cpu" else _DEVICE_COUNTERS) // max(len(keys), 1), 1)
    for begin in range(0, counters, size):
        end = min(begin + size, counters)
        block_BN = _block(torch.arange(begin, end, device=device), keys_R2B1)
        found_BN[:, 4 * begin : 4 * end] = block_BN[:, : count - 4 * begin]
    return found_BN


def round_keys(keys: Sequence[int]) -> torch.Tensor:
    """Return the two 32-bit words of 64-bit keys in each round, int64 [rounds, 2, B, 1]."""
    words_2B = torch.tensor([[key & _WORD for key in keys], [key >> 32 for key in keys]])
    steps_R2 = torch.arange(_ROUNDS)[:, None] * torch.tensor(_KEY_STEPS)
    return ((words_2B + steps_R2[..., None]) & _WORD)[..., None]


def philox(counter: Sequence[torch.Tensor], keys_R2B1: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return four random 32-bit words of each counter: Philox4x32-10.

    Args:
        counter: the counter's four 32-bit words, from the lowest, int64 of a shape that broadcasts with [B, 1].
        keys_R2B1: keys of the rounds, see `round_keys`.
    """
    c0, c1, c2, c3 = counter
    for k0_B1, k1_B1 in keys_R2B1:
        # int64 holds all 64 bits of a product, with the highest as its sign; the mask takes the sign off again.
        product_0, product_2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product_2 >> 32) & _WORD).bitwise_xor_(c1).bitwise_xor(k0_B1)
        c2 = ((product_0 >> 32) & _WORD).bitwise_xor_(c3).bitwise_xor(k1_B1)
        c1, c3 = product_2.bitwise_and_(_WORD), product_0.bitwise_and_(_WORD)
    return c0, c1, c2, c3


def box_muller(radius_word: torch.Tensor, angle_word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two independent standard normal float64 tensors for two of random 32-bit words.

    Two bits of the angle are the signs, thirty an angle t = pi / 4 + v within a quarter turn. Then sqrt(-2 ln
    u) times cos t and sin t is sqrt(-ln u) times cos v - sin v and cos v + sin v.
    """
    radius = _log((radius_word.double() + 0.5) * 2.0**-32).neg_().sqrt_()
    low = (angle_word & 0x3FFFFFFF).double()
    v = (low + (0.5 - 2.0**29)).mul_(math.pi / 2 * 2.0**-30)
    square = v * v
    sine, cosine = _polynomial(_SINE, square).mul_(v), _polynomial(_COSINE, square)
    signs = ((angle_word >> 31) * 2 - 1, ((angle_word >> 30) & 1) * 2 - 1)
    return (cosine - sine).mul_(radius).mul_(signs[0]), cosine.add_(sine).mul_(radius).mul_(signs[1])


_SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(9))
_COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(9))
_ARTANH = tuple(2 / (2 * n + 1) for n in range(11))


def _block(counter: torch.Tensor, keys_R2B1: torch.Tensor) -> torch.Tensor:
    """Return the normal numbers of counters, four each, float64 [B, 4 N]."""
    zero = torch.zeros_like(counter)
    w0, w1, w2, w3 = philox((counter & _WORD, counter >> 32, zero, zero), keys_R2B1)
    return torch.stack([*box_muller(w0, w1), *box_muller(w2, w3)], dim=-1).flatten(1)


def _log(u: torch.Tensor) -> torch.Tensor:
    """Return the natural logarithm of positive normal float64 numbers by the series of artanh."""
    mantissa, exponent = torch.frexp(u)
    small = mantissa < math.sqrt(0.5)
    mantissa = mantissa * (1 + small.double())
    power = exponent.double() - small.double()
    s = (mantissa - 1) / (mantissa + 1)  # ln m = 2 artanh s, |s| <= 0.172
    return _polynomial(_ARTANH, s * s).mul_(s) + power * math.log(2)


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    """Evaluate a polynomial by Horner's rule; coefficients from the constant one."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(x).add_(coefficient)
    return total
