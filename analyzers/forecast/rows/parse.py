"""A published row as a plan. A value that a row does not state is taken from its config, its model's name, or
not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.check import check_plan
from shardtoll.analyzers.forecast.plan.limits import check_sizes
from shardtoll.analyzers.forecast.plan.network import Network
from shardtoll.analyzers.forecast.plan.sizes import parameters
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.analyzers.forecast.rows.models import model_of
from shardtoll.analyzers.forecast.rows.networks import network_of
from shardtoll.analyzers.roofline import find_gpu, known_gpus
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.training_plan import Checkpointing, Layout, ModelShape, Sharding, TrainingPlan

Row = Mapping[str, str]

_GPUS: Final = (
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "b300-sxm"),
    ("b200", "b200-sxm"),
    ("h200", "h200-sxm"),
    ("gh200", "gh200-96gb"),
    ("h800", "h800-sxm"),
    ("h100", "h100-sxm"),
    ("a100-40", "a100-sxm-40gb"),
    ("a100 40", "a100-sxm-40gb"),
    ("a100 sxm 40", "a100-sxm-40gb"),
    ("a800", "a800-sxm-80gb"),
    ("a100", "a100-sxm-80gb"),
    ("ampere", "a100-sxm-80gb"),
    ("mi300x", "mi300x"),
)


class Abstain(Exception):
    """The row cannot be priced; says why."""


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row that can be priced."""

    plan: TrainingPlan
    network: Network
    assumed: tuple[str, ...]
    """Fields that the row does not state, or states as they cannot be."""
    replaced: tuple[str, ...] = ()
    """Impossible values that the row states, and the ones priced in their place, one sentence each."""


def read_row(row: Row) -> ReadRow:
    """Return the plan of a row. Raises Abstain with the reason if too much is unknown."""
    config = " ".join((row.get("config") or "", row.get("note") or ""))
    assumed: list[str] = []
    replaced: list[str] = []
    replaced += unread(row)
    gpu = _gpu(row)
    model = _model(row)
    layout, sequence = _layout(row, config, model, assumed, replaced)
    try:
        check_sizes(model, layout, sequence)
    except ShardtollError as error:
        raise Abstain(error.message) from error
    framework = row.get("framework") or _framework(row)
    precision = _precision(row, config)
    notes = _hardware_notes(row)
    _refuse_unstated(row, config, model, layout, assumed)
    if "grad_op" in (row.get("shard") or "").casefold():
        notes["sharding"] = "grad_op"
    if "lora" in f"{row.get('model')} {config}".casefold():
        notes["frozen"] = "LoRA"
    plan = TrainingPlan(
        model, layout, sequence, gpu, precision=precision, framework=framework,
        compiled=_compiled(row, config), notes=notes,
    )  # fmt: skip
    try:
        network, stated = network_of(gpu, row.get("hardware") or "", row.get("net") or "")
        check_plan(plan)
    except ShardtollError as error:
        raise Abstain(error.message) from error
    if not stated and layout.world_size > plan.gpus_per_node:
        assumed.append("network")
    return ReadRow(plan, network, tuple(assumed), tuple(replaced))


def _hardware_notes(row: Row) -> dict[str, str]:
    """Return what the row says of a card that differs from the one as sold: power limit, kind of memory."""
    words = f"{row.get('hardware') or ''} {row.get('note') or ''} {row.get('gpu') or ''}".casefold()
    notes = {}
    watts = re.search(r"(?<!\d)(\d{3,4})\s*w(?![a-z])", words)
    if watts is not None:
        notes["watts"] = watts[1]
    if "h100" in words and "hbm2e" in words:
        # "96GB HBM2e with 2.4 TB/sec" (pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md).
        notes["memory_gbps"] = "2400"
    return notes


def _refuse_unstated(row: Row, config: str, model: ModelShape, layout: Layout, assumed: list[str]) -> None:
    """Raise Abstain where the batch or the layout decides the step and nobody states it."""
    batch = {"mbs", "ga"} <= set(assumed)
    if batch and (row.get("metric") in ("iter_s", "step_s") or layout.pp > 1):
        raise Abstain("the batch is unknown: neither mbs, ga nor gbs is stated")
    named = any(row.get(name) for name in ("tp", "pp", "dp", "shard")) or re.search(
        r"FSDP|ZeRO|DDP|TP\d|PP\d|SHARD", config, re.IGNORECASE
    )
    if not named and parameters(model) > _LARGE:
        raise Abstain("the layout is unknown: no tp, pp, dp or shard is stated for a large model")


_LARGE: Final = 13e9
"""Parameters from which on a model is seldom trained without model parallelism or sharding."""


def _gpu(row: Row) -> str:
    stated = (row.get("gpu") or "").strip()
    if stated.endswith(".toml") or any(gpu.name == stated for gpu in known_gpus()):
        try:
            return card_of(stated).key
        except ShardtollError as error:
            raise Abstain(error.message) from error
    text = f"{row.get('gpu') or ''} {row.get('hardware') or ''}".casefold()
    for word, name in _GPUS:
        if word in text:
            return name
    found_gpu = find_gpu(row.get("gpu") or row.get("hardware"))
    if found_gpu is None and not text.strip():
        raise Abstain("the row names no GPU")
    if found_gpu is None:
        raise Abstain(f"unknown GPU {(row.get('gpu') or row.get('hardware') or '')!r:.60}")
    return found_gpu.name


_WHOLE: Final = (
    *("gpus", "seq", "mbs", "ga", "gbs", "tp", "pp", "vpp", "cp", "ep", "layers", "hidden", "heads"),
    *("kv_heads", "ffn", "vocab", "experts", "topk"),
)
_NO_CHECKPOINTING: Final = ("none", "no", "0", "false", "off", "-")


def unread(row: Row) -> list[str]:
    """Return a sentence for each cell that states what its column cannot hold."""
    made = []
    for name in _WHOLE:
        text = (row.get(name) or "").strip()
        value = number(row, name)
        if text and (value is None or float(text) != value):
            rounded = "it is not read" if value is None else f"{value:,} is priced"
            made.append(f"{name} {text!r:.30} is no whole number: {rounded}")
    precision = (row.get("precision") or "").strip().casefold()
    if precision and not any(name in precision for name in _PRECISIONS):
        made.append(f"precision {precision!r:.30} is unknown: bf16 is priced")
    kept = (row.get("ac") or "").strip().casefold()
    if kept and not kept.startswith((*_FULL, *_SELECTIVE, *_NO_CHECKPOINTING)):
        made.append(f"ac {kept!r:.30} is unknown: none is priced")
    return made


def number(row: Row, name: str) -> int | None:
    """Return a whole number of a column; None if it is empty, negative or no number."""
    text = (row.get(name) or "").strip()
    try:
        value = int(float(text))
    except (OverflowError, ValueError):
        return None
    return value if value >= 0 else None


_GATED: Final = ("llama", "hf-", "mixtral", "grok", "qwen", "deepseek", "mistral", "gemma", "oss")


def _model(row: Row) -> ModelShape:
    name = row.get("model") or ""
    published = model_of(name)
    columns = {key: number(row, key) for key in ("layers", "hidden", "heads", "ffn", "vocab")}
    if all(columns.values()):
        stated = {key: int(value or 0) for key, value in columns.items()}
        gated = published.gated if published else any(word in name.casefold() for word in _GATED)
        experts = number(row, "experts") or 1
        base = ModelShape(
            **stated,
            kv_heads=number(row, "kv_heads") or stated["heads"],
            gated=gated,
            tied=(row.get("tied") or "") in ("1", "true", "True"),
            experts=experts,
            topk=number(row, "topk") or 1,
            params=number(row, "params"),
            name=name,
        )
        if published is None or published.hidden != base.hidden:
            return base
        extra = {
            key: getattr(published, key)
            for key in ("head_dim", "expert_ffn", "shared_experts", "dense_layers")
        }
        ffn = published.ffn if published.expert_ffn else base.ffn
        return replace(base, **extra, ffn=ffn)
    if published is None and not name.strip():
        raise Abstain("the row names no model, and no shape")
    if published is None:
        raise Abstain(f"model {name!r:.60} has no stated shape and no published one")
    layers = number(row, "layers")
    return replace(published, layers=layers) if layers else published


_MOST_DIGITS: Final = 15


def _degree(row: Row, config: str, column: str, *words: str) -> int | None:
    stated = number(row, column)
    if stated:
        return stated
    for word in words:
        match = re.search(rf"(?<![A-Za-z]){word}[ =_-]?(\d+)", config, re.IGNORECASE)
        if match is not None:
            if len(match[1]) > _MOST_DIGITS:
                raise Abstain(f"{column} has {len(match[1])} digits")
            return int(match[1])
    return None


def _layout(
    row: Row, config: str, model: ModelShape, assumed: list[str], replaced: list[str]
) -> tuple[Layout, int]:
    world = number(row, "gpus")
    if not world:
        raise Abstain("the number of GPUs is unknown")
    tp = _degree(row, config, "tp", "TP") or 1
    pp = _degree(row, config, "pp", "PP") or 1
    cp = _degree(row, config, "cp", "CP") or 1
    ep = _degree(row, config, "ep", "EP") or 1
    if pp > model.layers or world % (tp * pp * cp):
        replaced.append(f"pp {pp} cannot be with {world} GPUs and {model.layers} blocks: pp 1 is priced")
        pp = 1
        assumed.append("pp")
    if world % (tp * pp * cp):
        raise Abstain(f"{world} GPUs are not divisible by tp {tp} x pp {pp} x cp {cp}")
    dp = world // (tp * pp * cp)
    if (dp * cp * tp) % ep:
        # Experts stand on the ranks of one stage: as many of them as can share these.
        stated, ep = ep, math.gcd(ep, dp * cp * tp)
        replaced.append(f"ep {stated} does not divide the {dp * cp * tp} ranks of a stage: ep {ep} is priced")
        assumed.append("ep")
    sequence = _degree(row, config, "seq", "seq", "seqlen", "seq_len")
    if not sequence:
        sequence = _default_sequence(row)
        assumed.append("seq")
    chunks = (_degree(row, config, "vpp", "VP", "VPP") or 1) if pp > 1 else 1
    if pp > 1 and chunks == 1 and "interleaved" in f"{row.get('schedule')} {config}".casefold():
        chunks = max(1, min(2, model.layers // pp))
    if chunks * pp > model.layers + 2:
        chunks = 1
    micro, accumulation = _batch(row, config, dp, pp * chunks, assumed)
    checkpointing = _checkpointing(row, config, assumed)
    layout = Layout(
        dp=dp, sharding=_sharding(row, config, assumed), tp=tp, sequence_parallel=_sequence_parallel(row, tp),
        pp=pp, chunks=chunks, cp=cp, ep=ep, micro_batch=micro, accumulation=accumulation,
        checkpointing=checkpointing, schedule=row.get("schedule") or "1F1B",
        async_tp="async" in config.casefold().replace("-", ""),
    )  # fmt: skip
    return layout, sequence


def _sequence_parallel(row: Row, tp: int) -> bool:
    """Whether the row says so, else whether its framework usually does."""
    text = row.get("sp") or ""
    return text == "sp" or (tp > 1 and traits_of(row.get("framework") or _framework(row)).sequence_parallel)


def _default_sequence(row: Row) -> int:
    name = (row.get("model") or "").casefold()
    if "torchtitan" in f"{row.get('source')} {row.get('framework')}".casefold() and "llama3" in name.replace(
        ".1", ""
    ):
        return 8192
    if re.match(r"gpt|megatron|turing", name):
        return 2048
    raise Abstain("the sequence length is unknown")


def _batch(row: Row, config: str, dp: int, stages: int, assumed: list[str]) -> tuple[int, int]:
    micro = _degree(row, config, "mbs", "mbs", "lbs", "bs")
    gbs = _degree(row, config, "gbs", "gbs", "batch", "global batch")
    accumulation = _degree(row, config, "ga", "ga")
    if micro is None:
        micro = 1
        assumed.append("mbs")
    if gbs and gbs >= dp:
        if gbs % (dp * micro) and "mbs" in assumed:
            micro = 1
        accumulation = max(1, round(gbs / (dp * micro)))
    if accumulation is None:
        accumulation = 1
        assumed.append("ga")
    pp = number(row, "pp") or 1
    local = micro * accumulation
    torchtitan = traits_of(row.get("framework") or _framework(row)).name == "torchtitan"
    if torchtitan and stages > 1 and accumulation == 1 and local % stages == 0:
        # torchtitan cuts a local batch into as many micro-batches as there are stages.
        micro, accumulation = local // stages, stages
    elif pp > 1 and accumulation < pp and not gbs:
        # A local batch of a pipeline is cut into micro-batches of one sequence.
        accumulation, micro = accumulation * micro, 1
    return micro, accumulation


_FULL: Final = ("full", "true", "1", "yes")
_SELECTIVE: Final = ("sel", "sac", "op")


def _checkpointing(row: Row, config: str, assumed: list[str]) -> Checkpointing:
    text = (row.get("ac") or "").casefold()
    if not text:
        match = re.search(r"AC=(\w+)", config)
        text = match[1].casefold() if match else ""
        lowered = config.casefold()
        if not text and ("fullac" in lowered or "full recompute" in lowered or "full ac" in lowered):
            text = "full"
        if not text and re.search(r"\bsac\b|selective", lowered):
            text = "selective"
    if text.startswith(_FULL):
        return "full"
    if text.startswith(_SELECTIVE):
        return "selective"
    if not text:
        assumed.append("ac")
        # torchtitan's own configurations checkpoint selectively.
        if traits_of(row.get("framework") or _framework(row)).name == "torchtitan":
            return "selective"
    return "none"


def _sharding(row: Row, config: str, assumed: list[str]) -> Sharding:
    text = (row.get("shard") or "").casefold() or config.split(" ")[0].casefold()
    if "zero0" in text:
        return "ddp"
    if "zero1" in text or "dist-opt" in text or "distributed opt" in text:
        return "zero1"
    if "zero2" in text:
        return "zero2"
    if any(word in text for word in ("full_shard", "fsdp", "shard_grad", "zero3", "hsdp")):
        return "fsdp"
    if "ddp" in text:
        return "ddp"
    assumed.append("sharding")
    name = traits_of(row.get("framework") or _framework(row)).name
    if name in ("torchtitan", "composer", "jax"):
        return "fsdp"
    return "zero1" if name in ("nemo", "nanotron") else "ddp"


_PRECISIONS: Final = ("fp4", "fp8", "float8", "bf16", "fp16", "fp32", "tf32")


def _precision(row: Row, config: str) -> str:
    text = (row.get("precision") or "").casefold()
    if not text:
        lowered = config.casefold()
        text = "fp8" if re.search(r"fp8|float8", lowered) else "fp16" if "fp16" in lowered else "bf16"
    if "fp4" in text:
        return "fp4"
    for name in _PRECISIONS[1:]:
        if name in text:
            return "fp8" if name == "float8" else name
    return "bf16"


def _compiled(row: Row, config: str) -> bool:
    text = (row.get("compile") or "").strip().casefold()
    if text:
        return text not in ("0", "no", "false", "none")
    lowered = config.casefold()
    if "compile" in lowered or traits_of(row.get("framework") or _framework(row)).name != "torchtitan":
        return "compile" in lowered
    # torchtitan refuses asynchronous tensor parallelism without the compiler, and warns of 8 bits without it.
    return "async" in lowered or _precision(row, config) == "fp8"


def _framework(row: Row) -> str:
    text = f"{row.get('source')} {row.get('group')} {row.get('config')}".casefold()
    for name in ("torchtitan", "llm-foundry", "nanotron", "megatron-bridge", "nemo", "vtrain", "megatron"):
        if name in text:
            return name
    return ""
