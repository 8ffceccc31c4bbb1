"""Sentences on a page: text between backticks is code."""

from __future__ import annotations

import re
from typing import Final

_CODE: Final = re.compile(r"`([^`\n]+)`")


def coded_html(escaped: str) -> str:
    """Return text that is escaped for HTML with its code in `<code>` instead of backticks.

    Text that was cut inside its code, so that a backtick has no partner, keeps them all.
    """
    if escaped.count("`") % 2:
        return escaped
    return _CODE.sub(r"<code>\1</code>", escaped)
