"""Places of sound packets in whole numbers are those of exact fractions."""

import random
from fractions import Fraction

from reelweave.curate.cut.audio import SoundSlice, slices_of


def plain(
    times: list[tuple[int, int]], time_base: Fraction, start_s: Fraction, rate: int, frame_size: int
) -> list[SoundSlice]:
    """As `slices_of`, by fractions."""
    tick, slices = time_base * rate, list[SoundSlice]()
    for pts, duration in times:
        near = not duration or abs(duration * tick - frame_size) <= tick
        begin = round((pts * time_base - start_s) * rate)
        if slices:
            expected = slices[-1].begin + slices[-1].samples
            begin = expected if abs(begin - expected) <= max(Fraction(1), tick) else begin
        slices.append(SoundSlice(begin, frame_size if frame_size and near else round(duration * tick)))
    return slices


def test_packets_lie_where_exact_fractions_put_them() -> None:
    drawn = random.Random(7)
    for _ in range(200):
        base = drawn.choice([Fraction(1, 44100), Fraction(1, 1000), Fraction(1, 90000), Fraction(3, 1000)])
        rate, frame_size = drawn.choice([44100, 48000, 8000]), drawn.choice([0, 960, 1024])
        usual = round((frame_size or 1024) / rate / base)
        at, times = drawn.randrange(-3000, 3000), []
        for _ in range(drawn.randrange(30)):
            times.append((at, drawn.choice([usual, usual, 0, usual + 1])))
            at += usual + drawn.choice([0, 0, 1, -1, usual])
        start_s = Fraction(drawn.randrange(-50, 10**5), drawn.choice([1, 7, 1000, 24000]))
        given = (times, base, start_s, rate, frame_size)
        assert slices_of(*given) == plain(*given)
