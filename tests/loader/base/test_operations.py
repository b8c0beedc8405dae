"""Processor seconds by operation: each without those inside it, together all of them."""

import time
from collections.abc import Iterator

import pytest

from reelweave.loader.base.operations import REST, charged, measure_operations, sum_operations


def work(seconds: float) -> None:
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


@charged("inner")
def inner() -> str:
    work(0.02)
    return "value"


@charged("outer")
def outer() -> str:
    work(0.01)
    return inner()


@charged("steps")
def steps() -> Iterator[int]:
    for number in range(3):
        work(0.01)
        yield number


@charged("broken")
def broken() -> None:
    work(0.01)
    raise ValueError("no")


def test_an_operation_is_charged_without_those_inside_it() -> None:
    began_s = time.process_time()
    with measure_operations() as seconds:
        assert outer() == "value"
        work(0.01)
    all_s = time.process_time() - began_s
    assert seconds["outer"] >= 0.01
    assert seconds["inner"] >= 0.02
    assert seconds[REST] >= 0.01
    assert sum(seconds.values()) == pytest.approx(all_s, abs=0.005)


def test_the_steps_of_a_generator_are_charged_and_what_is_between_them_is_not() -> None:
    with measure_operations() as seconds:
        numbers = []
        for number in steps():
            numbers.append(number)
            work(0.02)
    assert numbers == [0, 1, 2]
    assert seconds["steps"] >= 0.03
    assert seconds[REST] >= 0.06


def test_a_function_that_fails_is_charged_and_what_follows_is_not_its() -> None:
    with measure_operations() as seconds:
        with pytest.raises(ValueError, match="no"):
            broken()
        inner()
    assert set(seconds) == {"broken", "inner", REST}


def test_nothing_is_measured_outside_and_inner_contexts_leave_the_outer_one() -> None:
    assert outer() == "value"
    with measure_operations() as seconds, measure_operations() as none:
        inner()
    assert none == {}
    assert seconds["inner"] > 0


def test_sums() -> None:
    assert sum_operations([{"a": 1.0, "b": 2.0}, {"b": 3.0}]) == {"a": 1.0, "b": 5.0}
