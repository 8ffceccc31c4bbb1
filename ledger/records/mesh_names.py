"""Names of mesh dimensions, by what their ranks divide among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

MeshKind: TypeAlias = Literal["tensor", "stages", "context", "experts", "data"]

REPLICATE: Final = ("replicate", "dp_replicate", "ddp", "rep")
"""Dimensions whose ranks hold equal parameters."""
SHARD: Final = ("shard", "dp_shard", "fsdp")
"""Dimensions whose ranks share parameters and their gradients."""
NAMES: Final[Mapping[MeshKind, tuple[str, ...]]] = {
    "tensor": ("tp", "tensor", "model", "mp"),
    "stages": ("pp", "pipe", "pipeline", "pipelining", "stage", "stages"),
    "context": ("cp", "context", "seq", "sequence"),
    "experts": ("ep", "expert", "experts"),
    "data": ("dp", "data", "batch", "hsdp", *REPLICATE, *SHARD),
}
"""Names as `plain_name` has them. Ranks of the first two kinds work on the same tokens."""

_KIND: Final[Mapping[str, MeshKind]] = {name: kind for kind, names in NAMES.items() for name in names}
_PREFIX: Final = "mesh_"
"""Torch puts it before the name in the description of a dimension's group."""
_ENDING: Final = re.compile(r"(?<=.)[_\-. ]?(parallel|dim|axis|rank|mesh|group|size)$")


def plain_name(name: str) -> str:
    """Return the name in lower case without torch's prefix and an ending as in `pipeline_parallel`."""
    return _ENDING.sub("", name.casefold().removeprefix(_PREFIX))


def is_of(name: str | None, kind: MeshKind) -> bool:
    """Return whether the dimension, or each that it was flattened from, is of this kind."""
    return set(parts_of(name).values()) == {kind}


def parts_of(name: str | None) -> Mapping[str, MeshKind]:
    """Return what a dimension was flattened from, as `dp` and `cp` of `dp_cp`; one that was not is itself.

    Empty if the name or a part of it says nothing.
    """
    if name is None:
        return {}
    whole = plain_name(name)
    if whole in _KIND:
        return {whole: _KIND[whole]}
    parts = whole.split("_")
    return {part: _KIND[part] for part in parts} if all(part in _KIND for part in parts) else {}
