"""The plan file of `shardtoll advise`: TOML, with every mistake in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 1 << 20
"""Bytes of a plan that is read."""


def tables(plan: Path) -> dict[str, Any]:
    """Return what the file says; UsageError if it is no TOML."""
    import sys

    from shardtoll.ledger import UsageError
    from shardtoll.ledger.records.regular import read_regular

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(read_regular(plan, _MOST_BYTES).decode("utf-8")))
    except OSError as error:
        raise UsageError(
            f"cannot read {plan} ({error.strerror or error})", "name a TOML file, or give --model"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{plan} is no TOML file ({error!s:.80})", "see docs/advise.md") from error
