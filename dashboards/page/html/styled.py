"""A self-contained page without figures: it loads nothing and runs nothing."""

from __future__ import annotations

from shardtoll.dashboards.page.html.frame import STYLE, assets, policy


def styled(title: str, body: str) -> str:
    """Return a whole page in the style of the others; `title` and `body` are HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy()}">
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
