"""A question read from a TOML file's tables, or put together from options; every mistake in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Any, Final

from shardtoll.analyzers.forecast.compute.cards import card_of_gpu
from shardtoll.analyzers.forecast.plan import FabricNetwork
from shardtoll.analyzers.forecast.plan.check import usual_fabric
from shardtoll.analyzers.forecast.rows.models import alike, model_of
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.advice import Question
from shardtoll.ledger.answers.training_plan import PRECISIONS, Layout, ModelShape

_SUFFIXES: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_TOP: Final = (
    "model", "current", "gpus", "gpu", "fabric", "sequence", "batch_tokens", "gpus_per_node", "precision",
    "framework", "memory_share", "price_per_gpu_hour",
)  # fmt: skip
_DEFAULT_BATCH_TOKENS: Final = 2**22
_USUAL_NODE: Final = 8
_ABOUT: Final = 0.05
"""Share by which a batch of about so many tokens may differ from them."""


def count_of(text: str, option: str) -> int:
    """A number of tokens, as 4M (4e6), 4Mi (2**22) or 4194304; UsageError if it is none."""
    word = text.strip().lower()
    base = 1
    if word.endswith("i"):
        word, base = word[:-1], 2
    unit = _SUFFIXES.get(word[-1:], 0)
    digits = word[:-1] if unit else word
    if base == 2 and unit:
        unit = 2 ** (10 * ("kmg".find(word[-1]) + 1))
    try:
        value = round(float(digits) * (unit or 1))
    except (ValueError, OverflowError):
        value = 0
    if not 0 < value < 10**15:
        raise UsageError(f"{option} {text!r:.40} is no number of tokens", "give it as 4M, 512k or 4194304")
    return value


def question_of(values: Mapping[str, Any], place: str) -> Question:
    """Return the question of a file's tables. `place` names the file, or the options, in messages."""
    for name in values:
        if name not in _TOP:
            raise UsageError(f"{place}: unknown key {name!r:.40}", f"use {', '.join(_TOP)}")
    model = _model(values.get("model"), place)
    current = _current(values.get("current"), place)
    sequence = _whole(values, "sequence", place, 8192 if model.vocab > 100_000 else 2048)
    gpus = _whole(values, "gpus", place, current.world_size if current is not None else None)
    sequences = _sequences(values, sequence, gpus, current, place)
    if current is not None and current.world_size != gpus:
        raise UsageError(
            f"{place}: the current layout has {current.world_size} GPUs, not {gpus}",
            "leave gpus out, or leave [current] out",
        )
    precision = values.get("precision", "bf16")
    if precision not in PRECISIONS:
        raise UsageError(f"{place}: unknown precision {precision!r:.40}", f"use {', '.join(PRECISIONS)}")
    share = values.get("memory_share", 1.0)
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise UsageError(f"{place}: memory_share {share!r:.40} is no share", "give it as 0.9")
    gpu = _gpu(values)
    price = values.get("price_per_gpu_hour")
    if price is not None and not (type(price) in (int, float) and 0 < price < inf):
        raise UsageError(f"{place}: price_per_gpu_hour {price!r:.40} is no price", "give it as 2.5")
    return Question(
        model=model,
        gpus=gpus,
        gpu=gpu,
        sequence=sequence,
        sequences=sequences,
        fabric=values.get("fabric"),
        gpus_per_node=_whole(values, "gpus_per_node", place, _node(gpu, values.get("fabric"))),
        precision=precision,
        framework=str(values.get("framework", "")),
        memory_share=float(share),
        price_per_gpu_hour=price,
        current=current,
    )


def _gpu(values: Mapping[str, Any]) -> str:
    """Return the GPU that was named, else that of the fabric that was named, else `h100-sxm`."""
    if values.get("gpu") is not None:
        return str(values["gpu"])
    fabric = values.get("fabric")
    named = load_fabric(fabric).gpu if isinstance(fabric, str) else None
    return "h100-sxm" if named is None else card_of_gpu(named).key


def _node(gpu: str, fabric: object) -> int:
    """Return how many GPUs fast links join in the fabric, or in the usual one of the GPU; 8 if none says."""
    try:
        name = fabric if isinstance(fabric, str) else usual_fabric(gpu)
    except UsageError:
        return _USUAL_NODE
    return FabricNetwork(load_fabric(name)).ranks_per_node or _USUAL_NODE


def _sequences(
    values: Mapping[str, Any], sequence: int, gpus: int, current: Layout | None, place: str
) -> int:
    """Effective batch in sequences: as asked, else the current layout's, else about 4M tokens.

    A number in full that is of whole sequences is meant so. Another one, as 4M, is about that many.
    """
    tokens = values.get("batch_tokens")
    if tokens is None and current is not None:
        return current.sequences
    wanted = _DEFAULT_BATCH_TOKENS if tokens is None else count_of(str(tokens), "batch_tokens")
    if str(tokens).strip().isdecimal() and wanted % sequence == 0:
        return wanted // sequence
    sequences = wanted / sequence
    if sequences < 1:
        raise UsageError(
            f"{place}: a batch of {wanted:,} tokens holds no sequence of {sequence:,}",
            "give a larger batch or a shorter sequence",
        )
    # 4M tokens means 2**22 to most users: the nearest power of two is taken if it is within 5 %.
    power = 2 ** round(sequences).bit_length()
    near = min((power, power // 2), key=lambda each: abs(each - sequences))
    # An odd number of sequences rules out most layouts: first comes a batch that the GPUs divide.
    about = [each for each in (near, gpus * round(sequences / gpus)) if abs(each / sequences - 1) <= _ABOUT]
    divided = [each for each in about if each % gpus == 0]
    return next(iter((*divided, *about)), round(sequences))


def _model(given: object, place: str) -> ModelShape:
    if isinstance(given, str):
        model = model_of(given)
        if model is None:
            raise UsageError(
                f"{place}: unknown model {given!r:.40}",
                f"name one as {', '.join(alike(given) or ['llama3-8b'])}, or give its shape in [model]",
            )
        return model
    if not isinstance(given, Mapping):
        raise UsageError(f"{place}: no model", "give --model llama3-8b, or [model] with its shape in a file")
    made: ModelShape = _record(ModelShape, given, f"{place}: [model]")
    return made


def _current(given: object, place: str) -> Layout | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(f"{place}: [current] is no table", "write dp = 8, tp = 2, ... under [current]")
    made: Layout = _record(Layout, given, f"{place}: [current]")
    return made


def _record(kind: Any, given: Mapping[str, Any], place: str) -> Any:
    names = [each.name for each in fields(kind)]
    for name in given:
        if name not in names:
            raise UsageError(f"{place}: unknown key {name!r:.40}", f"use {', '.join(names)}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        reason = str(error).split("__init__() ")[-1]
        raise UsageError(f"{place}: {reason:.120}", "see docs/advise.md for the keys") from error


def _whole(values: Mapping[str, Any], name: str, place: str, usual: int | None) -> int:
    value = values.get(name, usual)
    if value is None:
        raise UsageError(f"{place}: {name} is missing", f"give --{name.replace('_', '-')}, as 64")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**7:
        raise UsageError(f"{place}: {name} {value!r:.40} is no positive whole number", "give one, as 64")
    return value
