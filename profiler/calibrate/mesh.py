"""A device mesh as text."""

from __future__ import annotations

import math

from shardtoll.ledger import UsageError


def parse_mesh(text: str, ranks: int | None = None) -> dict[str, int]:
    """Return `dp=2,tp=4` as names and sizes; UsageError for anything else, or if they are not `ranks`."""
    mesh: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        name = name.strip()
        if not equals or not name or name in mesh or not size.strip().isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh {text!r:.60} is not a mesh", "write it as --mesh dp=2,tp=4")
        mesh[name] = int(size)
    if ranks is not None and math.prod(mesh.values()) != ranks:
        sizes = " x ".join(str(size) for size in mesh.values())
        raise UsageError(f"a mesh of {sizes} does not fit {ranks} ranks", "name all its dimensions")
    if not any(size > 1 for size in mesh.values()):
        raise UsageError("no dimension of the mesh has two ranks", "measure between at least two ranks")
    return mesh
