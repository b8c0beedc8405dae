"""The registry of published families: what every entry says, and the page that shows it."""

from pathlib import Path

import pytest

from reelweave.train.models.published.families.registry import FAMILIES, TRANSFORMERS, VAES

PAGE = Path(__file__).parents[3] / "docs/finetune.md"
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.source)


def test_each_class_of_diffusers_has_one_family() -> None:
    assert len(TRANSFORMERS) == len(FAMILIES)
    assert {family.vae for family in FAMILIES} == set(VAES.values())


@EACH
def test_the_page_has_a_row_of_each(family) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and family.source in line]
    assert len(rows) == 1, f"docs/finetune.md has no row of {family.source}"


@EACH
def test_what_plans_read_without_files_is_whole(family) -> None:
    for name, size in family.sizes.items():
        assert size.hidden % size.heads == 0, name
