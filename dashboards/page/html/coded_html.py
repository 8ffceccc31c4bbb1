"""Sentences on a page: text between backticks is code."""

from __future__ import annotations

import re
from typing import Final

_CODE: Final = re.compile(r"`([^`\n]+)`")


def coded_html(escaped: str) -> str:
    """Return text that is escaped for HTML with its code in `<code>` instead of backticks."""
    return _CODE.sub(r"<code>\1</code>", escaped)
