"""Sentences on a terminal: what stands between backticks is code, and shown without them."""

from __future__ import annotations

import re
from typing import Final

from rich.text import Text

CODE_STYLE: Final = "green"
_CODE: Final = re.compile(r"`([^`\n]+)`")


def coded(text: str, style: str = "") -> Text:
    """Return the sentence with its code in `CODE_STYLE`, the rest in `style`."""
    made = Text(style=style)
    for place, part in enumerate(_CODE.split(text)):
        made.append(part, style=CODE_STYLE if place % 2 else None)
    return made
