"""Whether a gradient scaler is at work: it leaves out the steps whose gradients are not finite, by design."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.amp import GradScaler

from shardtoll.profiler.live.times.patches import Patches, patched


def patch_scalers(scales: Callable[[], None]) -> Callable[[], None]:
    """Have `scales` called whenever a scaler that is enabled scales a loss; returns the undoing."""

    def telling(original: Any) -> Callable[..., Any]:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                scales()
            return original(scaler, *args, **kwargs)

        return scale

    def install(patches: Patches) -> None:
        for owner in _classes(GradScaler):
            patches.around(owner, "scale", telling)

    return patched(install)


def _classes(base: type) -> Iterator[type]:
    """Yield a class and those made of it that scale in their own way, as FSDP1's does."""
    yield base
    subclasses: list[type] = base.__subclasses__()
    for made in subclasses:
        for each in _classes(made):
            if "scale" in vars(each):
                yield each
