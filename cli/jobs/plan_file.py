"""The plan file of `shardtoll advise`: TOML, with every mistake in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 1 << 20
"""Bytes of a plan that is read."""


def tables(plan: Path) -> dict[str, Any]:
    """Return the content of the file; UsageError if it is no TOML."""
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread

    try:
        return toml_tables(read_text(plan, _MOST_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read {plan} ({why_unread(error)})", "name a TOML file, or give --model"
        ) from error
    except TomlError as error:
        raise UsageError(f"{plan} is no TOML file ({error!s:.80})", "see docs/advise.md") from error
