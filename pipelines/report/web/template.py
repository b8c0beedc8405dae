"""HTML of pages from templates, in which all text from outside is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from reelweave.pipelines.report.web.files import POLICY


def render(template: str, **values: object) -> str:
    """Render a page from its template.

    Args:
        template: file of ``pipelines/templates`` that extends ``base.html``.
        **values: values that it names; always ``title``, ``subtitle``, ``notes`` and ``figures``.
    """
    return _environment().get_template(template).render(policy=POLICY, **values)


@cache
def _environment() -> Environment:
    """Return what compiles a template once a process."""
    environment = Environment(
        loader=PackageLoader("reelweave.pipelines"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = _format_cell
    return environment


_MOST_WHOLE = 1e15  # numbers below have all of their digits


def _format_cell(cell: Any) -> str:
    """Return a cell of a table as people read it."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if 10_000 <= abs(cell) < _MOST_WHOLE else f"{cell:,.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
