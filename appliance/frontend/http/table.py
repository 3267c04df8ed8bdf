"""A table of a page: rows of columns where there is room, a card for each row on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Column(NamedTuple):
    """Its ``title`` and the CSS class of its cells."""

    title: str
    kind: str = "text"


def table(columns: Sequence[Column], rows: str, labelled_by: str) -> str:
    """The whole of it, which scrolls and is named by the element with the id ``labelled_by``; ``rows`` as ``row``
    writes them."""
    heads = "".join(
        f'<th role="columnheader" scope="col" class="{kind}">{escape(title)}</th>' for title, kind in columns
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-labelledby="{labelled_by}"><table role="table">
<thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup">{rows}</tbody>
</table></div>"""


def row(columns: Sequence[Column], cells: Iterable[str]) -> str:
    """A row of ``cells``, which are HTML."""
    inside = "".join(
        f'<td role="cell" data-label="{title}" class="{kind}"><span>{cell}</span></td>'
        for (title, kind), cell in zip(columns, cells, strict=True)
    )
    return f'<tr role="row">{inside}</tr>'
