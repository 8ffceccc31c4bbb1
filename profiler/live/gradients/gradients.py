"""`check_gradients`: is every gradient of a distributed model the one that a single device computes?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Finding
from shardtoll.profiler.live.gradients.diagnosis import first_look, known_factors
from shardtoll.profiler.live.gradients.exchange import (
    Own,
    copy_buffer,
    copy_weight,
    measure,
    own_gradients,
    pooled_look,
    true_gradients,
    wire_device,
)
from shardtoll.profiler.live.gradients.findings import Suspect, findings_of
from shardtoll.profiler.live.gradients.gradient_held import PlaceOf, modules_of
from shardtoll.profiler.live.gradients.inputs import prepared, require_nonzero
from shardtoll.profiler.live.gradients.ranks import Ranks
from shardtoll.profiler.live.gradients.shards import partitions
from shardtoll.profiler.live.gradients.tolerance import compute_dtypes, eps_of, tolerance_of
from shardtoll.profiler.live.session import pausing

Loss = Callable[[nn.Module], torch.Tensor]


def check_gradients(
    model: nn.Module | Sequence[nn.Module],
    reference: nn.Module,
    loss: Loss,
    *,
    rtol: float | None = None,
    names: PlaceOf | None = None,
) -> list[Finding]:
    """Compare every gradient of a distributed model with the one a single device computes.

    Call it on every rank, after backward and before the optimizer. `reference` is the unsharded module, of
    the same class as `model` before any wrapper. `loss(reference)` returns the loss of the global batch, of
    all ranks together, as a scalar. `loss` runs on rank 0 alone and must not communicate.

    A rank may hold a part of the model. In a pipeline `model` is its stage, or a list of its stages, whose
    names are those of the whole model. `names` says where a parameter is in the reference if not under its
    own name. It is a mapping, or a function of the name. The result is the reference's name, or (name, slice)
    for a part of a tensor, as {"experts.0.weight": "experts.4.weight"} or {"experts.weight":
    ("experts.weight", slice(4, 8))}. Ranks without a parameter do not take part in its comparison; each
    parameter of the reference must be held by some rank. Parameters are tied if one of the two modules ties
    them. The gradients of names that are one tensor of the model add up, also over the stages of a pipeline.

    Weights and buffers are copied from model to reference by name, from the first rank that holds them. The
    reference then holds the model's weights. Parts of names that DDP, FSDP, torch.compile and activation
    checkpointing add are ignored; sharded tensors are gathered. On ranks other than 0 it may be on the meta
    device. Its gradients are None afterwards. Nothing of the model, its gradients, its modes or torch's
    random state is changed. An open audit leaves the check out of its records and puts its findings into its
    report.

    Each rank compares what it holds. A DTensor's local gradient is compared with the same slice of the true
    one. A gradient still Partial is reduced first, as the optimizer would. FSDP1's piece is compared with the
    same run of elements, any other gradient with the whole. `rtol` is the largest relative L2 error that
    counts as equal. The default is sqrt(eps) of the lowest precision involved; `gradient_tolerance` says why.

    Returns the same list of `wrong-gradient` findings on every rank, empty when all gradients are
    right. Raises UsageError on every rank if the two modules do not match, or if the loss is no scalar. Also
    if there are no gradients to compare.
    """
    with pausing.paused(), _random_state_kept(model), torch.no_grad():
        findings, right, wrong = _check(model, reference, loss, rtol, names)
    pausing.deliver(findings, right, wrong)
    return findings


def _random_state_kept(model: object) -> AbstractContextManager[None]:
    roots = [model] if isinstance(model, nn.Module) else model if isinstance(model, (list, tuple)) else ()
    parameters = (tensor for root in roots if isinstance(root, nn.Module) for tensor in root.parameters())
    devices = {tensor.device for tensor in parameters if tensor.device.type == "cuda"}
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices=sorted(devices, key=str))
    return kept


def _check(
    model: object, reference: object, loss: Loss, rtol: float | None, names: PlaceOf | None
) -> tuple[list[Finding], set[str], set[str]]:
    """Return the findings, and this rank's names of the parameters that are right and of the others."""
    ranks = Ranks()
    inputs = prepared(ranks, model, reference, loss, rtol, names)
    pairs = inputs.pairs
    device = wire_device(ranks, pairs)
    weights_apart = {pair.name: copy_weight(ranks, pair, device) for pair in pairs}
    for buffer in inputs.buffers:
        copy_buffer(ranks, buffer, device)
    trained = [pair for pair in pairs if pair.first.trained]
    fetch = true_gradients(ranks, inputs, loss, device)
    gradients = own_gradients(ranks, trained)
    measured, true_sq, numel = measure(gradients, fetch)
    lowered = compute_dtypes(modules_of(inputs.roots))
    held = [pair.held.weight for pair in pairs if pair.held is not None]
    on = "cuda" if any(tensor.device.type == "cuda" for tensor in held) else device.type
    spacings = [eps_of({pair.first.dtype, pair.references[0].dtype} | lowered, on) for pair in trained]
    ddp = any(isinstance(module, DistributedDataParallel) for module in modules_of(inputs.roots))
    kinds = [_kind(mine, ddp) for mine in gradients]
    # From here on every rank decides from the same numbers: what follows has collectives in it.
    gathered = ranks.gather((measured, weights_apart, spacings, true_sq, kinds))
    true_sq = gathered[0][3]
    require_nonzero(ranks, [row[0] for row in gathered], true_sq)

    parts = partitions(inputs.roots, ranks)
    factors = known_factors(ranks.size, {part.label: part.size for part in parts if part.mesh_dim})
    true_rms = math.sqrt(true_sq / numel) if numel else 0.0
    suspects: list[Suspect] = []
    for index, mine in enumerate(gradients):
        pair = mine.pair
        seen = tuple(row[0][index] for row in gathered)
        tolerance = tolerance_of(max(row[2][index] for row in gathered), inputs.rtol, true_rms)
        diagnosis = first_look(seen, tolerance, factors)
        if diagnosis is None:
            continue
        error_after: float | None = None
        if diagnosis.cause == "unknown":
            diagnosis, error_after = pooled_look(ranks, mine, fetch(pair), seen, parts, tolerance, factors)
        kind, replicated_over, was_partial = gathered[pair.holders[0]][4][index]
        suspects.append(
            Suspect(
                name=pair.name,
                kind=kind,
                replicated_over=replicated_over,
                was_partial=was_partial,
                ranks=seen,
                diagnosis=diagnosis,
                tolerance=tolerance.relative,
                dtype=str(pair.first.dtype).removeprefix("torch."),
                weights_apart=tuple(row[1][pair.name] for row in gathered),
                error_after=error_after,
                tied_to=pair.tied_to,
                own_name=None if pair.first.own_name == pair.name else pair.first.own_name,
            )
        )
    suspected = {suspect.name for suspect in suspects}
    here = [(mine.pair.name, mine.pair.held.name) for mine in gradients if mine.pair.held is not None]
    wrong = {name for name_there, name in here if name_there in suspected}
    return findings_of(suspects, parts), {name for _, name in here} - wrong, wrong


def _kind(gradient: Own, ddp: bool) -> tuple[str, tuple[str, ...], str | None]:
    """Return what wraps a gradient, over which mesh dimensions it says Replicate, and how it was Partial."""
    held = gradient.pair.held
    fsdp1 = "FSDP1" if held is not None and held.flat is not None else None
    layout = gradient.layout
    return fsdp1 or layout.kind or ("DDP" if ddp else "plain"), layout.replicated_over, layout.was_partial
