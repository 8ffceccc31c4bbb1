"""Accelerators: their peaks, memory and device names; `fabrics/gpus.toml` lists those that are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from shardtoll.analyzers.roofline.machines.quantity import Quantity
from shardtoll.analyzers.roofline.machines.table import Table, is_text, read_file, read_toml
from shardtoll.ledger import FabricError, UsageError

DATA: Final = "shardtoll.analyzers.roofline.fabrics"
GPUS_FILE: Final = "gpus.toml"
PEAK_DTYPES: Final = ("float32", "tf32", "bfloat16", "float16", "float8")
"""Formats that peaks are given for; tf32 is float32 matmuls if torch allows TensorFloat-32."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of accelerator. Peaks are dense, without structured sparsity."""

    name: str
    title: str
    peak_tflops: Mapping[str, Quantity]
    """1e12 floating-point operations per second by dtype (`PEAK_DTYPES`). A dtype without units, or with an
    unknown peak, is missing."""
    memory_bytes: Quantity
    memory_gbps: Quantity
    """GB/s (1e9) of its own memory."""
    reached_matmul_tflops: Quantity | None = None
    """Highest measured rate of large bfloat16 matmuls; None if nobody published it."""
    device_names: tuple[str, ...] = ()
    """Device names that hold one of these as a word are this accelerator (case does not matter) ..."""
    device_names_not: tuple[str, ...] = ()
    """... unless they hold one of these."""
    family: str | None = None
    """A word in names of boards that `device_names` does not have; such boards are distinguished by their
    memory."""
    sms: int | None = None
    """Multiprocessors or compute units that drivers report."""
    capability: tuple[int, int] | None = None
    """Compute capability that drivers report, as (9, 0)."""

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number with its dotted name, as `peak_tflops.bfloat16`."""
        for dtype, number in self.peak_tflops.items():
            yield f"peak_tflops.{dtype}", number
        yield "memory_bytes", self.memory_bytes
        yield "memory_gbps", self.memory_gbps
        if self.reached_matmul_tflops is not None:
            yield "reached_matmul_tflops", self.reached_matmul_tflops

    @property
    def guesses(self) -> tuple[str, ...]:
        """Names of the numbers that are guesses."""
        return tuple(name for name, number in self.quantities() if number.confidence == "GUESS")


def named(text: str, names: Iterable[str], names_not: Iterable[str] = ()) -> bool:
    """Whether the text holds one of the names as a word, and none of the others.

    A word ends where letters and digits end: `H200` is not in `GH200`, `L4` not in `L40S`.
    """
    return any(_holds(text, name) for name in names) and not any(_holds(text, name) for name in names_not)


def _holds(text: str, name: str) -> bool:
    # By hand: regular expressions for a hundred names take longer to compile than all matching does.
    text, name = text.lower(), name.lower()
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        around = (text[start - 1 : start] if start else "", text[end : end + 1])
        if not any(each.isascii() and each.isalnum() for each in around):
            return True
        start = text.find(name, start + 1)
    return False


@cache
def known_gpus() -> tuple[Gpu, ...]:
    """Return the accelerators that are shipped, by name."""
    text = resources.files(DATA).joinpath(GPUS_FILE).read_text(encoding="utf-8")
    root = read_toml(text, GPUS_FILE)
    gpus = [read_gpu(root.table(name), name) for name in root.data]
    return tuple(sorted(gpus, key=lambda gpu: gpu.name))


def load_gpu(words: str) -> Gpu:
    """Return the accelerator of a name, of a TOML file, or of a TOML text, as runs keep it.

    A file or text has one table as `gpus.toml` has them. Any text that ends in `.toml` or has a folder in it
    is a path. Raises UsageError with similar names for an unknown name, FabricError for a file that cannot be
    read or describes none.
    """
    if not (is_text(words) or words.endswith(".toml") or len(Path(words).parts) > 1):
        return _by_name(words)
    where = "on record" if is_text(words) else words
    root = read_toml(words if is_text(words) else read_file(Path(words), words, "GPU"), where, "GPU")
    if len(root.data) != 1:
        raise FabricError(f"{where} describes {len(root.data)} GPUs", "give one table, as [mine]")
    name = next(iter(root.data))
    return read_gpu(root.table(name), name)


def _by_name(name: str) -> Gpu:
    by_name = {gpu.name: gpu for gpu in known_gpus()}
    if name not in by_name:
        alike = _alike(name, list(by_name)) or ["a100-sxm-80gb", "h100-sxm", "b200-sxm"]
        raise UsageError(
            f"no GPU named {name!r:.60}",
            f"name one that `shardtoll gpus` lists, as {', '.join(alike)}, or a .toml file",
        )
    return by_name[name]


def _alike(name: str, known: Sequence[str]) -> list[str]:
    """Return up to four names that a wrong one may mean: those that hold it first, dashes or not."""

    def plain(text: str) -> str:
        return "".join(filter(str.isalnum, text.casefold()))

    holding = [each for each in known if plain(name) and plain(name) in plain(each)]
    near = difflib.get_close_matches(name.casefold(), known, 4, 0.4)
    return list(dict.fromkeys((*holding, *near)))[:4]


_MEMORY_SHARE: Final = (0.93, 1.09)
"""Bytes that a driver reports per byte as sold: error correction takes some, and GB may be counted as GiB."""


def find_gpu(
    device_name: str | None,
    memory_bytes: int | None = None,
    sms: int | None = None,
    capability: str | None = None,
) -> Gpu | None:
    """Return the accelerator of this device name, as `NVIDIA H100 80GB HBM3`; None if none or several fit.

    The driver's figures decide between boards of a family (`A100-PG509-200`), and identify an accelerator
    that has no name. Several that fit count as one if their figures are equal.
    """
    if device_name:
        fitting = [gpu for gpu in known_gpus() if _is(gpu, device_name)]
        if fitting or memory_bytes is None:
            return fitting[0] if len(fitting) == 1 else None
    elif memory_bytes is None or sms is None or capability is None:
        return None
    fitting = [
        gpu
        for gpu in known_gpus()
        if (not device_name or _is_of_family(gpu, device_name))
        and _reports(gpu, memory_bytes, sms, capability)
    ]
    figures = {tuple((name, number.value) for name, number in gpu.quantities()) for gpu in fitting}
    return fitting[-1] if len(figures) == 1 else None


def _is(gpu: Gpu, name: str) -> bool:
    return gpu.title == name or named(name, gpu.device_names, gpu.device_names_not)


def _is_of_family(gpu: Gpu, name: str) -> bool:
    # Boards for PCIe say so, and have other links and clocks.
    return gpu.family is not None and named(name, (gpu.family,), ("PCIe",))


def _reports(gpu: Gpu, memory_bytes: int, sms: int | None, capability: str | None) -> bool:
    least, most = _MEMORY_SHARE
    return (
        least * gpu.memory_bytes.value <= memory_bytes <= most * gpu.memory_bytes.value
        and (sms is None or gpu.sms in (None, sms))
        and (capability is None or gpu.capability is None or capability_text(gpu.capability) == capability)
    )


def shipped_gpu(name: str, table: Table) -> Gpu:
    """Return the accelerator that a table names; FabricError with the known ones for another."""
    for gpu in known_gpus():
        if gpu.name == name:
            return gpu
    names = ", ".join(gpu.name for gpu in known_gpus())
    raise table.fail(f"no `gpu` {name!r:.60}", f"write one of {names}, or a table [gpu] of its own")


def capability_text(capability: tuple[int, int]) -> str:
    """Return a compute capability as drivers and files write it, as `9.0`."""
    return ".".join(map(str, capability))


def _capability(table: Table) -> tuple[int, int]:
    text = table.text("capability")
    numbers = text.split(".")
    if len(numbers) != 2 or not all(each.isascii() and each.isdigit() and len(each) < 4 for each in numbers):
        raise table.fail(f"`capability` is {text!r:.60}", 'write two numbers, as capability = "9.0"')
    return int(numbers[0]), int(numbers[1])


def read_gpu(table: Table, name: str | None = None) -> Gpu:
    """Return the accelerator that a table describes; `name` where the table's own key is it."""
    name_key = () if name is not None else ("name",)
    numbers = ("memory_bytes", "memory_gbps")
    lists = ("device_names", "device_names_not")
    chip = ("family", "sms", "capability")
    table.only(*name_key, "title", "peak_tflops", *numbers, "reached_matmul_tflops", *lists, *chip)
    for key in (*name_key, "title", "peak_tflops", *numbers):
        if key not in table:
            raise table.fail(
                f"`{key}` is missing", "a [gpu] has name, title, peak_tflops, memory_bytes, memory_gbps"
            )
    peaks = table.table("peak_tflops")
    peaks.only(*PEAK_DTYPES)
    reached = table.quantity("reached_matmul_tflops") if "reached_matmul_tflops" in table else None
    names, names_not = (table.texts(key) if key in table else () for key in lists)
    return Gpu(
        name=table.text("name") if name is None else name,
        title=table.text("title"),
        peak_tflops={dtype: peaks.quantity(dtype, most=1e9) for dtype in PEAK_DTYPES if dtype in peaks},
        memory_bytes=table.quantity("memory_bytes"),
        memory_gbps=table.quantity("memory_gbps"),
        reached_matmul_tflops=reached,
        device_names=names,
        device_names_not=names_not,
        family=table.text("family") if "family" in table else None,
        sms=int(table.quantity("sms", whole=True).value) if "sms" in table else None,
        capability=_capability(table) if "capability" in table else None,
    )
