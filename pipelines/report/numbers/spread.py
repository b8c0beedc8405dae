"""Evenly spread places of a sequence."""


def spread(total: int, most: int) -> list[int]:
    """Return at most so many places below ``total``, evenly spread and rising.

    Sums are of Python's integers: durations in damaged headers exceed 64 bits when multiplied.
    """
    count = min(total, most)
    return [(2 * place + 1) * total // (2 * count) for place in range(count)]
