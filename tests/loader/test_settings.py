"""Sections of a configuration: what stands for a number."""

import pytest
from pydantic import Field, ValidationError

from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.settings import Settings


class _Section(Settings):
    """A section."""

    count: int = 1
    share: float | None = None
    sizes: tuple[int, ...] = ()
    weights: dict[str, float] = Field({}, description="by name")
    on: bool = False
    either: bool | float = 0.5


@pytest.mark.parametrize(
    ("key", "value"),
    [("count", True), ("share", False), ("sizes", [8, True]), ("weights", {"a": True})],
)
def test_a_boolean_is_no_number(key: str, value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        _Section.model_validate({key: value})
    (error,) = raised.value.errors()
    assert error["loc"] == (key,)
    assert "is no number" in error["msg"]


def test_booleans_stay_where_they_belong_and_numbers_may_be_text() -> None:
    section = _Section.model_validate(
        {"on": True, "either": True, "count": "3", "share": "1e-4", "sizes": [8]}
    )
    assert (section.on, section.either, section.count, section.share) == (True, True, 3, 1e-4)


def test_the_constructor_of_python_refuses_it_too() -> None:
    with pytest.raises(ValidationError, match=r"microbatches\n.*a boolean"):
        StreamConfig(microbatches=True)
