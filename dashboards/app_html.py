"""HTML that our own renderers made, as Dash's components: the page and the server share every table.

Only tags and attributes of the list below become elements; everything else stays text. So nothing
in a name can become more than text even where a renderer forgot to escape it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, Final, TypeAlias

from dash import html
from dash.development.base_component import Component

Extra: TypeAlias = Callable[[str, dict[str, str]], dict[str, Any]]
"""Tag and its attributes -> properties to set on the component besides."""

_TAGS: Final = {
    name.lower(): getattr(html, name)
    for name in (
        *(
            "A",
            "B",
            "Bdi",
            "Br",
            "Code",
            "Dd",
            "Details",
            "Div",
            "Dl",
            "Dt",
            "Em",
            "H2",
            "H3",
            "H4",
            "I",
            "Li",
        ),
        *("Ol", "P", "Pre", "Section", "Small", "Span", "Strong", "Summary", "Table", "Tbody", "Td", "Th"),
        *("Thead", "Tr", "Ul", "Caption"),
    )
}
_VOID: Final = ("br",)
_NAMES: Final = {
    "class": "className",
    "tabindex": "tabIndex",
    "colspan": "colSpan",
    "rowspan": "rowSpan",
    "scope": "scope",
    "role": "role",
    "title": "title",
}
_WIDTH: Final = re.compile(r"\s*(width|background|color)\s*:\s*([\w.%#-]+)\s*")


def components(text: str, extra: Extra | None = None) -> list[Any]:
    """Return the HTML as components and texts; `extra` adds properties, such as ids."""
    builder = _Builder(extra or (lambda _tag, _attributes: {}))
    builder.feed(text)
    builder.close()
    return builder.finished()


class _Builder(HTMLParser):
    def __init__(self, extra: Extra) -> None:
        super().__init__(convert_charrefs=True)
        self._extra = extra
        self._open: list[tuple[str, dict[str, Any], list[Any]]] = [("", {}, [])]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            self.handle_data(self.get_starttag_text() or "")
            return
        given = {name: value or "" for name, value in attrs}
        properties = {**_properties(given), **self._extra(tag, given)}
        if tag in _VOID:
            self._open[-1][2].append(_TAGS[tag](**properties))
        else:
            self._open.append((tag, properties, []))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _TAGS:
            self.handle_data(f"</{tag}>")
        elif any(name == tag for name, _, _ in self._open):
            while self._close() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self._open[-1][2].append(data)

    def finished(self) -> list[Any]:
        while len(self._open) > 1:
            self._close()
        return self._open[0][2]

    def _close(self) -> str:
        tag, properties, children = self._open.pop()
        made: Component = _TAGS[tag](children=children, **properties)
        self._open[-1][2].append(made)
        return tag


def _properties(given: dict[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NAMES:
            properties[_NAMES[name]] = value
        elif name.startswith(("aria-", "data-")):
            properties[name] = value
        elif name == "open":
            properties[name] = True
        elif name == "href" and value.startswith("#"):
            properties[name] = value
        elif name == "style":
            found = (_WIDTH.fullmatch(part) for part in value.split(";"))
            properties[name] = {match.group(1): match.group(2) for match in found if match}
    return properties
