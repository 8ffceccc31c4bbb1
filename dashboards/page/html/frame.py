"""Frame of every self-contained page: its head, its policy, its figures as data and the scripts.

The page may not load anything. Its content policy allows the two scripts written into it, by their hashes,
and no address at all. The script and the style are asset files, which the server sends as they are.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from plotly.offline import get_plotlyjs

from shardtoll.dashboards.page.html.figure import Figure

STYLE: Final = ("page.css",)
DRAWING: Final = ("figures.js", "clock.js", "highlight.js", "pointer.js")
"""Scripts that draw the figures and answer pointer and keys, on the page and in the server."""


@cache
def assets(*names: str, package: str = "shardtoll.dashboards.page") -> str:
    """Return the texts of a package's asset files, one after the other."""
    folder = resources.files(package) / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def framed(title: str, body: str, figures: Mapping[str, Figure], *, marks: bool = True) -> str:
    """Return a whole page: `title` and `body` are HTML, `figures` go by the names of their places in it.

    Figures that are empty are not drawn. `marks`: whether the page has findings that light up marks in them.
    """
    data = {name: drawn(figure, marks=marks) for name, figure in figures.items() if not figure.empty}
    plotly, script = get_plotlyjs(), assets(*DRAWING, "start.js")
    inner = f"""{body}
<noscript><p>The figures need JavaScript; the tables hold the same numbers.</p></noscript>
<script type="application/json" id="figures">{embedded(data)}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{script}</script>"""
    return document(title, inner, plotly, script)


def document(title: str, body: str, *scripts: str) -> str:
    """Return a whole page in the style of all; `title` and `body` are HTML; only `scripts` may run on it."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(*scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{assets(*STYLE)}</style>
</head>
<body>
{body}
</body>
</html>
"""


def drawn(figure: Figure, *, marks: bool = True) -> dict[str, object]:
    """Return the data that the script draws a figure from."""
    kept = ("data", "layout", "strings", "columns", *(("marks",) if marks else ()))
    return {part: getattr(figure, part) for part in kept}


def embedded(value: object) -> str:
    """Return JSON that nothing inside a script element can end: `<`, `>` and `&` are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy(*scripts: str) -> str:
    """Return the content policy of a page that runs these scripts, by their hashes, and loads nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    run = allowed or "'none'"
    # Plotly writes style elements, and makes pictures from blobs; images may come from the page only.
    return (
        f"default-src 'none'; script-src {run}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
