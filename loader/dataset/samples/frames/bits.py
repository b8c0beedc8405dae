"""Bits of parameter sets and slice headers of H.264 and HEVC."""

from __future__ import annotations

_MOST_ZEROS = 32


class ParameterError(ValueError):
    """Reason why parameter sets cannot be read, in words."""


class Bits:
    """Bits of a set, the highest first; behind its end it raises `ParameterError`."""

    def __init__(self, data: bytes) -> None:
        self._value, self._size = int.from_bytes(data, "big"), 8 * len(data)
        self._left = self._size

    @property
    def position(self) -> int:
        """Number of bits that were taken."""
        return self._size - self._left

    def take(self, count: int = 1) -> int:
        """Return the next bits as a number."""
        self._left -= count
        if self._left < 0:
            raise ParameterError("a parameter set is cut off")
        return self._value >> self._left & ((1 << count) - 1)

    def unsigned(self) -> int:
        """Return an Exp-Golomb code without a sign (ITU-T H.264, 9.1)."""
        zeros = 0
        while not self.take():
            zeros += 1
            if zeros > _MOST_ZEROS:
                raise ParameterError("a parameter set is damaged")
        return (1 << zeros) - 1 + self.take(zeros)

    def signed(self) -> int:
        """Return an Exp-Golomb code with a sign (ITU-T H.264, 9.1.1)."""
        code = self.unsigned()
        return (code + 1) // 2 if code & 1 else -(code // 2)
