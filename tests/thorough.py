"""Cases that `make test` leaves out, since others hold the same promises.

`make thorough` and CI run those that are `thorough`. Products of layouts, models and formats, of which every part is in
one of these, are `nightly`: `make nightly` runs them.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

thorough = pytest.mark.thorough
nightly = pytest.mark.nightly


def but(always: Collection[Any], cases: Iterable[Any], often: Collection[Any] | None = None) -> list[Any]:
    """Parameters of which all but some are thorough, or nightly.

    Args:
        always: Cases that `make test` runs, too.
        cases: All of them, in their order.
        often: Cases that are thorough; those in neither are nightly. None: all others are thorough.
    """
    cases = list(cases)
    missing = [case for case in (*always, *(often or ())) if case not in cases]
    assert not missing, f"no such cases: {missing}"
    return [
        case if case in always else _marked(case, thorough if often is None or case in often else nightly)
        for case in cases
    ]


def beyond(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of which all but the first ``count`` are thorough."""
    return [case if n < count else _marked(case, thorough) for n, case in enumerate(cases)]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    values = case if isinstance(case, tuple | list) else (case,)
    return pytest.param(*values, marks=mark)


def chosen(request: pytest.FixtureRequest, *names: str) -> Sequence[Any]:
    """Return the values of parameters that tests of the module will run with, each once, in their order.

    A fixture that computes all cases at once so computes only those that are asked for.

    Args:
        names: Parameters; values of several are tuples. Tests that lack one of them do not count.
    """
    found: dict[Any, None] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec"):
            values = tuple(item.callspec.params.get(name) for name in names)
            if None not in values:
                found[values if len(names) > 1 else values[0]] = None
    return list(found)
