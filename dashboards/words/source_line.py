"""The file, line and function in a `source`, as capture and traces write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SOURCE: Final = re.compile(
    r"(?P<path>[^\x00-\x1f]+):(?P<line>[0-9]{1,9})(?: \((?P<function>[^()\x00-\x1f]*)\))?"
)
MOST: Final = 4_096
"""Characters of the longest path that Linux takes."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """`path` below the folder the job ran in; of others the last two parts.

    Other paths: in traces often absolute, else from any folder that Python imports from.
    """

    path: str
    line: int
    function: str | None


def source_line(source: str | None) -> SourceLine | None:
    """Return the parts of a source; None if it is no line of a file, as `<string>:1 (<module>)`."""
    parts = _SOURCE.fullmatch(source[:MOST]) if source else None
    if parts is None or parts["path"].startswith("<") or int(parts["line"]) < 1:
        return None
    return SourceLine(parts["path"], int(parts["line"]), parts["function"])
