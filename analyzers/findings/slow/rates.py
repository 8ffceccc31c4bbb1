"""Reasons for slow transfers that their rates and sizes show: latency, algorithm, network cards, staging."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.findings.slow.contrasts import BESIDE, doubling_explains
from shardtoll.analyzers.findings.slow.reasons import BY_PATTERN, Floats, Reason, Slow
from shardtoll.analyzers.roofline import Cost, Link, Placement
from shardtoll.analyzers.roofline.model.ways import Way
from shardtoll.analyzers.shared.tally import text
from shardtoll.ledger import Evidence
from shardtoll.ledger.words.human import percent, size

_NAME: Final = re.compile(
    r"^ncclDevKernel_\w*?_(RING|TREE|NVLS|NVLS_TREE|COLLNET_DIRECT|COLLNET_CHAIN|PAT)_(LL128|LL|SIMPLE)\b"
)


class Ran(Struct, frozen=True):
    """Facts that the name of a communication kernel proves about how it ran; None if it proves nothing.

    NCCL compiles one kernel for many: its name ends in LL whatever protocol runs, and says RING for
    everything but the tree. (NVIDIA/nccl issues 1595 and 2196: the name is "not a reliable indication";
    `best_kernel` in src/device/generate.py.) Only a name that could not have come about so is taken at its
    word.
    """

    algorithm: str | None
    """`tree`, `ring`, ... as in a cost's algorithm."""
    protocol: str | None
    """`LL128` or `Simple`."""


def ran(kernel: str | None) -> Ran:
    """Return what the kernel's name proves; names of other libraries and old ones prove nothing."""
    match = None if kernel is None else _NAME.match(kernel)
    if match is None:
        return Ran(None, None)
    algorithm, protocol = match[1].lower().replace("_", ""), match[2]
    if protocol != "LL":
        # Built with exact names: both hold.
        return Ran(algorithm, "Simple" if protocol == "SIMPLE" else protocol)
    return Ran("tree" if algorithm == "tree" else None, None)


REACHED: Final = 0.8
"""Part of a network card's line rate that a tuned library reaches at least with large messages. Measured:
0.81 to 0.98 (shared/reference/ROOFLINE.md, `Measured peak busbw / link limit`)."""

FEWER: Final = 0.75
"""A rate below this part of what cards carry is that of fewer cards; above it all of them are at work."""

SIZES_APART: Final = 4
"""How many times the smallest message the largest is, so that their times show a line and not a point."""

BY_POINT: Final = 0.7
"""Weight of a fit to messages of about one size, relative to a fit to several: a point lies on some line or
other."""

BY_COMPUTE_TOO: Final = 0.6
"""Share by which a pattern's score falls if compute during the transfers could explain it as well."""

PCIE_GBPS: Final = (10.0, 28.0)
"""GB/s in one direction through PCIe and host memory: gen 3 x16 reaches about 12, gen 4 about 25."""

LARGE_BYTES: Final = 1 << 26
"""Messages from which the number of channels decides the time, and latency does not."""

FEW_CHANNELS: Final = 320.7 / 391.4
"""busbw of NCCL's own number of channels over that with NCCL_MIN_CTAS=24, for an all_reduce of 8 GB. Measured
on 8 nodes of 8 H100 with a 400 Gb/s card each: NVIDIA/nccl-tests issue 309 (shared/sweeps,
h100_ib400_n8_ar_issue309)."""


def small_message(of: Slow) -> Reason | None:
    """Messages of which latency is the larger part: launch and hops, not the links' rate."""
    latency = of.of_cost(
        {int(number): float(of.context.costs[number].latency_ns) for number in set(of.bad["cost_id"])}
    )
    predicted = of.column("predicted_ns")
    share = float(latency.sum() / predicted.sum())
    if share < 0.5:
        return None
    over = np.maximum(of.column("transfer_ns") - predicted, 0)
    # Launching late, and every hop a little late: as much again as the latency itself, not more.
    explained = float(np.minimum(over, latency).sum() / max(1.0, float(over.sum())))
    each = int(np.median(of.column("message_bytes")))
    return Reason(
        name="small messages",
        score=share * explained,
        why=f"of the predicted time {percent(share)} is latency at a median message of {size(each)}",
        text="Send fewer and larger messages: coalesce them, or raise the size of the buckets.",
        code="with torch.distributed._coalescing_manager(async_ops=False):  # one launch for many\n"
        "    for tensor in tensors:\n"
        "        torch.distributed.all_reduce(tensor)",
        evidence=(
            Evidence("latency share of the prediction", round(share, 3), "share"),
            Evidence("latency of one message", int(np.median(latency)), "ns"),
        ),
    )


def other_algorithm(of: Slow, lines: Callable[[int], list[Way]]) -> Reason | None:
    """The times are those of another algorithm or protocol than the fastest for this size.

    `lines`: the times by each algorithm and protocol there is, of a cost id.
    """
    ids = sorted({int(cost_id) for cost_id in of.bad["cost_id"]})
    chosen = {
        cost_id: (of.context.costs[cost_id].algorithm, of.context.costs[cost_id].protocol) for cost_id in ids
    }
    slower: dict[tuple[str, str], dict[int, float]] = {}
    for cost_id in ids:
        for way in lines(cost_id):
            slower.setdefault((way.algorithm, way.protocol), {})[cost_id] = way.time_ns
    if not slower:
        return None
    kernel = ran(_kernel(of))
    fits = {
        each: of.explained(of.of_cost(times))
        for each, times in slower.items()
        if any(chosen[cost_id] != each for cost_id in ids) and len(times) == len(ids)
        if kernel.algorithm in (None, each[0]) and kernel.protocol in (None, each[1])
    }
    if not fits:
        return None
    likeliest = max(fits, key=lambda each: fits[each])
    wanted = chosen[ids[len(ids) // 2]]
    # Sizes that all lie on the same line are no accident.
    sizes = len({int(value) for value in of.column("message_bytes")})
    by_fit = (BY_PATTERN if sizes > 1 else BY_POINT * BY_PATTERN) * _unless_compute(of)
    sure = 1.0 if kernel.algorithm else by_fit
    named, best = _way(*likeliest), _way(*wanted)
    here = ", as the kernel's name says" if kernel.algorithm else ""
    return Reason(
        name=f"wrong algorithm or protocol ({named})",
        score=sure * fits[likeliest],
        why=f"the times are those of {named}{here}; for this size {best} is faster",
        text="Unset NCCL_ALGO, NCCL_PROTO or the tuner plugin (environment or nccl.conf), so that the "
        "library chooses; NCCL logs its choice.",
        code="for name in ('NCCL_ALGO', 'NCCL_PROTO', 'NCCL_TUNER_PLUGIN'):\n"
        "    os.environ.pop(name, None)  # before init_process_group\n"
        'os.environ["NCCL_DEBUG"] = "INFO"; os.environ["NCCL_DEBUG_SUBSYS"] = "TUNING"\n'
        f"# to try: {_settings(*wanted)}",
        evidence=(
            Evidence("fits", named),
            Evidence("how well", round(fits[likeliest], 3)),
            Evidence("fastest for this size", best),
        ),
    )


def _kernel(of: Slow) -> str | None:
    """Return the kernel that most of them ran as, if traces name it."""
    names = of.bad["kernel"].dropna()
    return text(names.mode().iloc[0]) if len(names) else None


def _way(algorithm: str, protocol: str) -> str:
    return f"{algorithm} with {protocol}" if protocol else algorithm


_NCCL: Final = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvlstree": "NVLSTree", "pat": "PAT"}


def _settings(algorithm: str, protocol: str) -> str:
    name = _NCCL.get(algorithm)
    parts = [f"NCCL_ALGO={name}"] if name else []
    return " ".join([*parts, *([f"NCCL_PROTO={protocol}"] if protocol else [])]) or "the library's own choice"


def few_channels(of: Slow) -> Reason | None:
    """Eight cards a node of 400 Gb/s and more, many nodes: NCCL opens too few channels to fill them."""
    link = of.context.fabric.inter
    if link is None or link.cards is None or link.cards.value < 8 or _card_gbps(link) < 45:
        return None
    fitting = [placement.nodes > 2 and placement.ranks_per_node == 8 for _, placement, _ in of.costs()]
    if of.context.fabric.library != "nccl" or not all(fitting):
        return None
    if float(np.median(of.column("message_bytes"))) < LARGE_BYTES:
        return None
    took, predicted = of.column("transfer_ns"), of.column("predicted_ns")
    reached = float(np.median(predicted / took))
    return Reason(
        name="too few channels",
        score=BY_PATTERN * of.explained(predicted / FEW_CHANNELS),
        why=f"they reach {percent(reached)} of the prediction; with its own number of channels NCCL reached "
        f"{percent(FEW_CHANNELS)} of what 24 channels did on 8 such nodes",
        text="Let NCCL use more channels: on 8 nodes of 8 H100 with a 400 Gb/s card each, NCCL_MIN_CTAS=24 "
        "gave 392 GB/s instead of 320 (NVIDIA/nccl-tests issue 309). Each channel takes a processor from "
        "compute, so compare whole steps.",
        code='os.environ["NCCL_MIN_CTAS"] = "24"  # before init_process_group',
        evidence=(Evidence("part of the prediction that is reached", round(reached, 3)),),
    )


def _card_gbps(link: Link) -> float:
    """Return what one network card sends in one direction, GB/s; 0 unknown."""
    if link.cards is None or link.node_gbps is None:
        return 0.0
    return link.node_gbps.value / link.cards.value


def fewer_cards(of: Slow) -> Reason | None:
    """The rate is that of one network card, or of half of them, at its limit.

    Twice to three times the time comes about in many ways. Only messages of several sizes that all move at
    the rate of half the cards prove missing cards. For messages of one size the finding names what else
    halves a host's rate.
    """
    link = of.context.fabric.inter
    if link is None or link.cards is None or link.cards.value < 2 or not _card_gbps(link):
        return None
    card, cards = _card_gbps(link), int(link.cards.value)
    sent = {
        int(cost_id): _node_bytes(of.context.costs[cost_id], of.context.places[cost_id])
        for cost_id in set(of.bad["cost_id"])
    }
    if not all(sent.values()):
        return None
    # If other transfers use the same cards meanwhile, their bytes do not show that cards are missing.
    took, node_bytes = of.column("transfer_ns"), of.of_cost(sent) * (1 + of.column("others"))
    rate = float(np.median(node_bytes / took))
    if rate >= FEWER * cards * card:
        return None
    best: tuple[float, int] = (0.0, 0)
    for used in sorted({1, cards // 2}):
        if not FEWER * REACHED <= rate / (used * card) <= 1.02:
            continue
        # Anything from what a library reaches to the line rate is that card at its limit.
        rates: Floats = np.clip(node_bytes / took, REACHED * used * card, used * card)
        best = max(best, (of.explained(node_bytes / rates), used))
    explained, used = best
    if not used:
        return None
    whose = "one network card" if used == 1 else f"{used} network cards"
    sizes = of.column("message_bytes")
    line = float(sizes.max()) > SIZES_APART * float(sizes.min())
    named = f"network cards ({used} of {cards} at work)"
    if not line and 2 * used >= cards:
        named = "half of the host's rate: network cards, or copies without GPUDirect"
    return Reason(
        name=named,
        score=(1.0 if line else BY_POINT) * BY_PATTERN * explained * _unless_compute(of),
        why=f"a node sends {rate:.3g} GB/s; {whose} of {card:.3g} GB/s would be at the limit, the node has "
        f"{cards}",
        text="Let every GPU use its own card. Check NCCL_IB_HCA and NCCL_SOCKET_IFNAME, and that the "
        "container sees all cards. In NCCL's log each channel must have a card of its own and say "
        "GDRDMA: the card then reads the GPU's memory itself.",
        code="# before init_process_group; the log lists the cards (NET/IB : Using ...) and who uses which\n"
        'os.environ["NCCL_DEBUG"] = "INFO"; os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,GRAPH"\n'
        'os.environ.pop("NCCL_IB_HCA", None)',
        evidence=(
            Evidence("a node sends", round(rate, 3), "GB/s"),
            Evidence("line rate of one card", round(card, 3), "GB/s"),
            Evidence("cards of a node", cards),
        ),
    )


def _unless_compute(of: Slow) -> float:
    """Return the part of a pattern's score that stays if compute during the transfers may have made it.

    Behind compute a transfer takes up to three times as long, with nothing wrong: half explained.
    """
    hidden = float((np.nan_to_num(of.column("hidden")) >= BESIDE).mean())
    return 1 - BY_COMPUTE_TOO * hidden * min(1.0, 2 * doubling_explains(of))


def _node_bytes(cost: Cost, placement: Placement) -> float:
    """Return what the cards of one node send for all groups that share them meanwhile."""
    return float(cost.net_bytes * placement.ranks_per_node * placement.sharing)


def host_staged(of: Slow) -> Reason | None:
    """Data goes through host memory: no GPUDirect between nodes, no peer access inside one."""
    run, costs = of.context.ledger.run, of.costs()
    if run.device == "cpu":
        return None
    crossing = all(placement.spans_nodes for _, placement, _ in costs)
    if "gloo" in (run.backend or "") and run.device is not None:
        return Reason(
            name="host-staged copies",
            score=1.0,
            why=f"backend {run.backend} copies tensors of {run.device} through host memory",
            text="Use NCCL for tensors on GPUs.",
            code='torch.distributed.init_process_group("nccl")',
            evidence=(Evidence("backend", run.backend),),
        )
    copied = _copied(of)
    if crossing and copied is not None and copied >= 0.5:
        return _no_gpudirect(
            BY_PATTERN * min(1.0, copied),
            f"copies to and from the host carry {copied:.2g} times the bytes of these collectives",
            (Evidence("copied over bytes of these collectives", round(copied, 2), "x"),),
        )
    if crossing:
        return None
    sent = of.of_cost(
        {int(number): float(of.context.costs[number].near_bytes) for number in set(of.bad["cost_id"])}
    )
    took, predicted = of.column("transfer_ns"), of.column("predicted_ns")
    rate, could = float(np.median(sent / took)), float(np.median(sent / predicted))
    low, high = PCIE_GBPS
    if not low <= rate <= high or could < 3 * high:
        return None
    return Reason(
        name="host-staged copies (no peer access between GPUs)",
        score=BY_PATTERN,
        why=f"a rank sends {rate:.3g} GB/s, as PCIe and host memory do; the links allow {could:.3g} GB/s",
        text="Check that GPUs reach each other directly: `nvidia-smi topo -m` and `-p2p r`. "
        "NCCL_P2P_DISABLE must not be set, and the container must see all GPUs of the node.",
        code='os.environ.pop("NCCL_P2P_DISABLE", None)  # before init_process_group\n'
        'subprocess.run(["nvidia-smi", "topo", "-p2p", "r"])',
        evidence=(
            Evidence("a rank sends", round(rate, 3), "GB/s"),
            Evidence("the links allow", round(could, 3), "GB/s"),
        ),
    )


def _no_gpudirect(score: float, why: str, evidence: tuple[Evidence, ...]) -> Reason:
    return Reason(
        name="host-staged copies (no GPUDirect)",
        score=score,
        why=why,
        text="Check that the network card reads the GPU's memory: NCCL's log says GDRDMA for each channel "
        "that does. It needs the nvidia_peermem module (or DMA-BUF) and, in virtual machines, the fabric's "
        "own plugin.",
        code="# before init_process_group; look for `via NET/.../GDRDMA`\n"
        'os.environ["NCCL_DEBUG"] = "INFO"; os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,GRAPH"\n'
        'os.environ.pop("NCCL_NET_GDR_LEVEL", None)',
        evidence=evidence,
    )


def _copied(of: Slow) -> float | None:
    """Return the bytes that copies between device and host move over those of the slow ones, on one rank.

    None if no such copies, or no bytes, are on record: both directions have to be there.
    """
    stalls = of.context.stalls_in_steps
    copies = stalls[(stalls["kind"] == "copy") & stalls["bytes"].notna()]
    down = copies[copies["name"].str.contains("DtoH|DeviceToHost")]["bytes"].sum()
    up = copies[copies["name"].str.contains("HtoD|HostToDevice")]["bytes"].sum()
    ranks = max(1, copies["rank"].nunique())
    frame = of.context.in_alike
    of_slow = frame[frame["match_id"].isin(of.bad["match_id"])]
    moved = float(of_slow["message_bytes"].sum()) / max(1, of_slow["rank"].nunique())
    if not down or not up or moved <= 0:
        return None
    return float(min(float(down), float(up)) / ranks / moved)
