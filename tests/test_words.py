"""Names of variables and parameters: the field's words, and not those that could name anything."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EMPTY = frozenset(
    """
    one found own said told given made most least left place places number numbers those others known asked whole every
    here there taken kept joined placed apart seen wanted
    """.split()  # noqa: SIM905
)
MOST_SHARE = {"curate": 0.01, "loader": 0.01, "pipelines": 0.01, "train": 0.01}
"""Share of empty names by package. It only goes down: 1 % is what a package may keep for keys that users know."""


def assigned(tree: ast.AST) -> list[str]:
    """Every name that is assigned, looped over or a parameter."""
    names = [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return names + [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]


@pytest.mark.parametrize("package", MOST_SHARE)
def test_names_say_what_they_hold(package: str) -> None:
    names, where = Counter[str](), Counter[str]()
    for path in sorted((ROOT / package).rglob("*.py")):
        of_file = assigned(ast.parse(path.read_text()))
        names.update(of_file)
        where[str(path.relative_to(ROOT))] = sum(name in EMPTY for name in of_file)
    share = sum(count for name, count in names.items() if name in EMPTY) / names.total()
    assert share <= MOST_SHARE[package], f"{share:.1%} of names say nothing; most in {where.most_common(5)}"
