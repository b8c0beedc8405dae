"""Annealing moves that change the order of a cell's cascades; compiled."""

from reelweave.loader.base.arrays import IntegerArray
from reelweave.loader.base.compiled import compiled
from reelweave.train.cascade.scheduling.random_bits import Bits, below, chance
from reelweave.train.cascade.scheduling.serial import MODULES


@compiled
def copy(order_N: IntegerArray, count: int, found_N: IntegerArray) -> None:
    """Copy an order; a loop, since slice assignment costs more for ten numbers."""
    for index in range(count):
        found_N[index] = order_N[index]


@compiled
def reorder(order_N: IntegerArray, count: int, bits: Bits) -> None:
    """Move one cascade to another position, or swap two."""
    index, other = below(bits, count), below(bits, count - 1)
    other += other >= index
    cascade = order_N[index]
    if chance(bits) < 0.5:
        order_N[index], order_N[other] = order_N[other], cascade
        return
    way = 1 if other > index else -1
    while index != other:
        order_N[index] = order_N[index + way]
        index += way
    order_N[other] = cascade


@compiled
def turn(order_N: IntegerArray, count: int, sample: int, partner: int) -> None:
    """Swap two samples of a cell."""
    for index in range(count):
        if order_N[index] // MODULES == sample:
            order_N[index] += MODULES * (partner - sample)
        elif order_N[index] // MODULES == partner:
            order_N[index] += MODULES * (sample - partner)


@compiled
def replace_sample(
    order_N: IntegerArray, count: int, sample: int, partner: int, found_N: IntegerArray
) -> None:
    """Copy an order with one sample replaced by another."""
    for index in range(count):
        cascade = order_N[index]
        found_N[index] = cascade + MODULES * (partner - sample) if cascade // MODULES == sample else cascade


@compiled
def without(order_N: IntegerArray, count: int, sample: int, found_N: IntegerArray) -> int:
    """Copy an order without one sample and return its length."""
    length = 0
    for index in range(count):
        if order_N[index] // MODULES != sample:
            found_N[length] = order_N[index]
            length += 1
    return length


@compiled
def with_one(order_N: IntegerArray, count: int, sample: int, bits: Bits, found_N: IntegerArray) -> int:
    """Copy an order with one sample inserted at a random position and return its length."""
    at = below(bits, count + 1)
    copy(order_N, at, found_N)
    for module in range(MODULES):
        found_N[at + module] = MODULES * sample + module
    for index in range(at, count):
        found_N[index + MODULES] = order_N[index]
    return count + MODULES
