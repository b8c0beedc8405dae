"""docs/scale.md: its tables are the script's, and measured inputs are what their pages say."""

import re

import pytest

from tests.bench.scale import FIGURES, INPUTS, evaluated, shown, tables, written
from tests.printed import ROOT

PAGE = ROOT / "docs" / "scale.md"


def test_the_page_has_the_tables_of_the_script() -> None:
    assert written(PAGE.read_text(), tables(evaluated({}))) == PAGE.read_text(), "run `make generated`"


@pytest.mark.parametrize("one", [one for one in INPUTS if one.page], ids=lambda one: one.name)
def test_a_measured_input_is_what_its_page_says(one) -> None:
    assert one.quote in (ROOT / "docs" / one.page).read_text()
    if one.kind == "measured":
        # The number itself, in the unit of the page or as what it is computed from.
        numbers = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", one.quote)]
        found = {a * scale for a in numbers for scale in (1, 1e-2, 1e-3, 1e-6, 1e-8, 1e3, 2 / 8000)}
        assert any(one.value == pytest.approx(number) for number in found) or one.name == "clip_density"


def test_formulas_name_only_what_stands_before_them() -> None:
    known = {one.name for one in INPUTS}
    for figures in FIGURES.values():
        for figure in figures:
            assert set(re.findall(r"[a-z_]{2,}\w*", figure.formula)) - {"ceil"} <= known
            known.add(figure.name)
    assert len(known) == len(INPUTS) + sum(map(len, FIGURES.values()))


def test_other_inputs_change_what_depends_on_them_alone() -> None:
    before, after = evaluated({}), evaluated({"raw_bytes": 50e15})
    assert after["core_h"] == before["core_h"] / 2
    assert after["train_h"] == before["train_h"]
    with pytest.raises(SystemExit, match="raw_byte"):
        evaluated({"raw_byte": 1})


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (100e15, "B", "100 PB"),
        (4096, "", "4,096"),
        (0.0051, "share", "0.51 %"),
        (830e-6, "s", "830 us"),
        (664_540, "$", "$665,000"),
        (1.2558e6, "$", "$1.26 million"),
        (4e-7, "$", "$0.4 per million"),
    ],
)
def test_numbers_are_shown_as_people_read_them(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
