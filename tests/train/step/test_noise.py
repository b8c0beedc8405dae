"""The noise: Philox's words, normal numbers of any position and key, and independence."""

import math

import numpy as np
import pytest
import torch

from reelweave.train.step import noise as module
from reelweave.train.step.noise import box_muller, draw_noise, normals, philox, round_keys

CPU = torch.device("cpu")
SHAPE = (2, 3, 5, 7)


def drawn(seed=7, keys=("a", "b"), passes=(3, 3), shape=SHAPE):
    return draw_noise(seed, keys, passes, shape, CPU)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's known answers (kat_vectors, philox4x32 10)
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    found = philox([torch.tensor([word]) for word in counter], round_keys([key]))
    assert tuple(int(word) for word in found) == words


def test_normal_numbers_are_numpys_box_muller():
    generator = np.random.default_rng(0)
    radius, angle = generator.integers(0, 2**32, (2, 100_000))
    x, y = box_muller(torch.from_numpy(radius), torch.from_numpy(angle))
    size = np.sqrt(-2 * np.log((radius + 0.5) / 2**32))
    turn = ((angle & (2**30 - 1)) + 0.5) / 2**30 * np.pi / 2
    signs = (np.where(angle >> 31, 1, -1), np.where(angle >> 30 & 1, 1, -1))
    np.testing.assert_allclose(x.numpy(), signs[0] * size * np.cos(turn), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(y.numpy(), signs[1] * size * np.sin(turn), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("radius", [0, 1, 2**31, 2**32 - 2, 2**32 - 1])
@pytest.mark.parametrize("angle", [0, 2**30 - 1, 2**30, 2**31, 2**32 - 1])
def test_every_word_gives_finite_numbers(radius, angle):
    x, y = box_muller(torch.tensor([radius]), torch.tensor([angle]))
    expected = math.sqrt(-2 * math.log((radius + 0.5) / 2**32))
    assert math.hypot(x, y) == pytest.approx(expected, rel=1e-9)
    assert x.dtype == y.dtype == torch.float64


def test_the_numbers_are_normal_and_independent():
    from scipy import stats

    found = normals([1, 2], 400_001, CPU).double().numpy()
    for own in found:
        assert stats.kstest(own, "norm").pvalue > 1e-3
    every = found.flatten()
    # Six standard errors.
    for power, moment, error in [
        (1, 0, 1.0),
        (2, 1, math.sqrt(2)),
        (3, 0, math.sqrt(15)),
        (4, 3, math.sqrt(96)),
    ]:
        assert abs((every**power).mean() - moment) < 6 * error / math.sqrt(len(every))
    neighbours = [found[0, lag:] * found[0, :-lag] for lag in (1, 2, 3, 4, 8)]
    for products in [*neighbours, found[0] * found[1], found[0] ** 2 * found[1] ** 2 - 1]:
        assert abs(products.mean()) < 6 * products.std() / math.sqrt(len(products))


def test_a_sample_draws_the_same_in_any_batch():
    both, alone = drawn(), drawn(keys=("b",), passes=(3,))
    assert both.shape == (2, *SHAPE)
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])


@pytest.mark.parametrize("other", [{"seed": 8}, {"keys": ("c", "b")}, {"passes": (4, 3)}])
def test_another_seed_key_or_pass_draws_anew(other):
    assert (drawn()[0] == drawn(**other)[0]).double().mean() < 0.05


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 4097])
def test_a_number_depends_on_its_position_alone(count):
    assert torch.equal(normals([11, 12], count, CPU), normals([11, 12], 5000, CPU)[:, :count])


@pytest.mark.parametrize("counters", [1, 7, 64])
def test_blocks_do_not_change_bits(monkeypatch, counters):
    whole = normals([11, 12, 13], 999, CPU)
    monkeypatch.setattr(module, "_CPU_COUNTERS", counters)
    assert torch.equal(normals([11, 12, 13], 999, CPU), whole)


def test_positions_beyond_32_bits_have_numbers_of_their_own():
    zero = torch.zeros(2, dtype=torch.int64)
    counter = [torch.tensor([5, 5]), torch.tensor([0, 1]), zero, zero]
    words = torch.stack(philox(counter, round_keys([3])))
    assert not torch.equal(words[..., 0], words[..., 1])


def test_lower_precision_is_the_same_noise_rounded():
    single = drawn()
    torch.set_default_dtype(torch.float64)
    try:
        double = drawn()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(double.float(), single)
    assert not torch.equal(double, single.double())


def test_a_compiled_caller_draws_the_same_bits():
    def shifted(x):
        return x + normals([5], 64, CPU)

    assert torch.equal(torch.compile(shifted, backend="aot_eager")(torch.zeros(64)), shifted(torch.zeros(64)))
