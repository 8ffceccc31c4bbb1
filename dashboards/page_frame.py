"""What is around every self-contained page: its head, its policy, its figures as data and the scripts.

The page may not load anything: its content policy allows the two scripts written into it, by their
hashes, and no address at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping

from plotly.offline import get_plotlyjs

from shardtoll.dashboards.figure import Figure
from shardtoll.dashboards.page_script import SCRIPT
from shardtoll.dashboards.page_style import STYLE


def framed(title: str, body: str, figures: Mapping[str, Figure], *, marks: bool = True) -> str:
    """Return a whole page: `title` and `body` are HTML, `figures` go by the names of their places in it.

    Figures that are empty are not drawn. `marks`: whether the page has findings that light up marks in them.
    """
    kept = ("data", "layout", "strings", "columns", *(("marks",) if marks else ()))
    data = {
        name: {part: getattr(figure, part) for part in kept}
        for name, figure in figures.items()
        if not figure.empty
    }
    plotly = get_plotlyjs()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(plotly, SCRIPT)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<noscript><p>The figures need JavaScript; the tables hold the same numbers.</p></noscript>
<script type="application/json" id="figures">{embedded(data)}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def embedded(value: object) -> str:
    """Return JSON that nothing inside a script element can end: `<`, `>` and `&` are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy(*scripts: str) -> str:
    """Return the content policy of a page that runs these scripts, by their hashes, and loads nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    # Plotly writes style elements, and makes pictures from blobs; images may come from the page only.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
