"""Which tensors are ordinary: their operators run at once, by no code of their class."""

from __future__ import annotations

from typing import Final

import torch

_NO_DISPATCH: Final = (None, torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__)


def is_ordinary(kind: type) -> bool:
    """Whether tensors of this type are ordinary ones."""
    return getattr(kind, "__torch_dispatch__", None) in _NO_DISPATCH
