"""Which leaves a backward will reach."""

from __future__ import annotations

from typing import Any, Final

import torch

_MOST: Final = 4096
"""Nodes that are looked at: enough to tell branches apart, and no more than some ms."""


def leaves(roots: Any) -> list[torch.Tensor]:
    """Return the leaves that a backward from a tensor, or from several, adds to, in a fixed order."""
    to_come: list[Any] = [
        root.grad_fn
        for root in ((roots,) if isinstance(roots, torch.Tensor) else roots)
        if isinstance(root, torch.Tensor) and root.grad_fn is not None
    ]
    seen = set(to_come)
    found: list[torch.Tensor] = []
    while to_come:
        node = to_come.pop()
        following = node.next_functions
        if not following:
            variable = getattr(node, "variable", None)
            if variable is not None:
                found.append(variable)
        for each, _ in following:
            if each is not None and each not in seen and len(seen) < _MOST:
                seen.add(each)
                to_come.append(each)
    return found
