"""Names of a finding's place as Python that a remedy's code can hold: quoted, on one line."""

from __future__ import annotations

import json
from typing import Final

CALLS: Final = {
    "all_reduce": "all_reduce({tensor}",
    "all_gather": "all_gather_into_tensor(whole, {tensor}",
    "reduce_scatter": "reduce_scatter_tensor(part, {tensor}",
    "all_to_all": "all_to_all_single(received, {tensor}",
    "broadcast": "broadcast({tensor}, src=root",
    "reduce": "reduce({tensor}, dst=root",
    "gather": "gather({tensor}, parts, dst=root",
    "scatter": "scatter({tensor}, parts, src=root",
    "send": "isend({tensor}, dst=other_rank",
    "recv": "irecv({tensor}, src=other_rank",
    "barrier": "barrier(",
}
"""Op -> the call of torch.distributed that does it, without its last bracket."""
OBJECT_CALLS: Final = {
    "all_gather_object": "all_gather_object(rows, mine)",
    "gather_object": "gather_object(mine, rows, dst=root)",
    "broadcast_object_list": "broadcast_object_list(rows, src=root)",
    "scatter_object_list": "scatter_object_list(mine, rows, src=root)",
}
"""Functions of torch.distributed that pickle Python objects -> a call of them."""
_OTHER: Final = "all_reduce({tensor}"


def quoted(name: str) -> str:
    """Return a name as a Python string, whatever characters it has."""
    return json.dumps(name)


def module(name: str | None) -> str:
    """Return what gets a module by its name; `block` if it is unknown or stands for several layers."""
    if name is None or "*" in name:
        return "block"
    return f"model.get_submodule({quoted(name)})" if name else "model"


def parameter(name: str) -> str:
    """Return what gets a parameter by its name."""
    return f"model.get_parameter({quoted(name)})"


def on_group(dim: str | None) -> str:
    """Return the last argument of a call, with its comma, that has it on a mesh dimension's group."""
    return f", group=mesh.get_group({quoted(dim)})" if dim else ""


def mesh(dim: str | None) -> str:
    """Return the part of the device mesh that has this dimension."""
    return f"mesh[{quoted(dim)}]" if dim else "mesh"


def call(
    op: str | None, dim: str | None = None, tensor: str = "tensor", *, asynchronous: bool = False
) -> str:
    """Return the call of a collective on a mesh dimension's group."""
    words = f"dist.{CALLS.get(op or '', _OTHER).format(tensor=tensor)}"
    more = [f"group=mesh.get_group({quoted(dim)})"] if dim else []
    if asynchronous and not words.startswith(("dist.isend", "dist.irecv")):
        more.append("async_op=True")
    return ", ".join([words, *more]).replace("(, ", "(") + ")"


def at(source: str | None, what: str = "at") -> str:
    """Return a comment that names the user's line; empty if the line is unknown."""
    shown = "".join(char if char.isprintable() else " " for char in source or "")
    line = " ".join(shown.split())
    return f"  # {what} {line}" if line else ""
