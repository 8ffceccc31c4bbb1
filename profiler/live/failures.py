"""How a failure of ours is told: in one line, whatever the error says."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """Return an error's kind and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
