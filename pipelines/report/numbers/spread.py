"""Evenly spread places of a sequence."""


def spread(total: int, max_count: int) -> list[int]:
    """Return at most so many places below ``total``, evenly spread and rising.

    Sums are of Python's integers: durations in damaged headers exceed 64 bits when multiplied.
    """
    count = min(total, max_count)
    return [(2 * index + 1) * total // (2 * count) for index in range(count)]
