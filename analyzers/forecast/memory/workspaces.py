"""Workspaces that torch gives cuBLAS, by kind of GPU."""

from __future__ import annotations

from functools import cache
from importlib import resources

from shardtoll.ledger.foreign.toml_text import toml_tables


@cache
def workspace_bytes(capability: tuple[int, int] | None) -> int:
    """Return the bytes of one handle's workspace on a GPU of that compute capability.

    `capability`: None if unknown; then the size of GPUs that torch has no own size for. Each thread that
    multiplies has a handle, and so a workspace, of its own.
    """
    text = resources.files(__package__).joinpath("workspaces.toml").read_text(encoding="utf-8")
    sizes = toml_tables(text)["bytes"]
    names = (".".join(map(str, capability)), str(capability[0])) if capability else ()
    return int(next((sizes[name] for name in names if name in sizes), sizes["other"]))
