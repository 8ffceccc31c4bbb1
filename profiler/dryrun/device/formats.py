"""The number format in which a GPU multiplies: matrices of float32 may run as TensorFloat-32."""

from __future__ import annotations

from typing import Final

import torch

TF32: Final = "tf32"
"""Float32 whose mantissa tensor cores cut to 10 bits, at several times the rate. Torch does so in
convolutions, and in other products if the program allows it."""


def dtype_text(tensor: torch.Tensor) -> str:
    """Return a tensor's type as the ledger has it: `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def multiplied(tensor: torch.Tensor, *, convolution: bool = False) -> str:
    """Return the format in which a GPU multiplies such tensors, by torch's switches of this moment."""
    text = dtype_text(tensor)
    return TF32 if text == "float32" and _allowed("conv" if convolution else "matmul") else text


def _allowed(operator: str) -> bool:
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is not None:
        # The older switches (allow_tf32, set_float32_matmul_precision) write here too.
        return bool(getter("cuda", operator) == TF32)
    backends = torch.backends
    return bool(backends.cudnn.allow_tf32 if operator == "conv" else backends.cuda.matmul.allow_tf32)
