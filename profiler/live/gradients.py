"""`check_gradients`: is every gradient of a distributed model the one that a single device computes?"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Finding
from shardtoll.profiler.live import pausing
from shardtoll.profiler.live.gradient_diagnosis import first_look, known_factors
from shardtoll.profiler.live.gradient_exchange import (
    copy_weight,
    measure,
    own_gradients,
    pooled_look,
    true_gradients,
    wire_device,
)
from shardtoll.profiler.live.gradient_findings import Suspect, findings_of
from shardtoll.profiler.live.gradient_inputs import prepared, require_nonzero
from shardtoll.profiler.live.gradient_ranks import Ranks
from shardtoll.profiler.live.gradient_shards import partitions
from shardtoll.profiler.live.gradient_tolerance import compute_dtypes, eps_of, tolerance_of

Loss = Callable[[nn.Module], torch.Tensor]


def check_gradients(
    model: nn.Module, reference: nn.Module, loss: Loss, *, rtol: float | None = None
) -> list[Finding]:
    """Compare every gradient of a distributed model with the one a single device computes.

    Call it on every rank, after backward and before the optimizer. `reference` is the unsharded
    module, of the same class as `model` before any wrapper; `loss(reference)` returns the loss of the
    global batch, of all ranks together, as a scalar. It runs on rank 0 alone and must not communicate.

    Rank 0's weights and buffers are copied from model to reference by name (the parts of names that
    DDP, FSDP2, torch.compile and activation checkpointing add are ignored; DTensors are gathered), so
    the reference then holds the model's weights; on ranks other than 0 it may be on the meta device.
    Its gradients are None afterwards. Nothing of the model, its gradients, its modes or torch's random
    state is changed; an open audit leaves the check out of its records and puts its findings into its
    report.

    Each rank compares what it holds: a DTensor's local gradient with the same slice of the true one (a
    gradient still Partial is reduced first, as the optimizer would), any other gradient with the
    whole. `rtol` is the largest relative L2 error that counts as equal; by default sqrt(eps) of the
    lowest precision involved, see `gradient_tolerance` for why.

    Returns the same list of `wrong-gradient` findings on every rank, empty when all gradients are
    right. Raises UsageError on every rank alike when the two modules do not match, the loss is no
    scalar, or there are no gradients to compare.
    """
    with pausing.paused(), _random_state_kept(model), torch.no_grad():
        findings = _check(model, reference, loss, rtol)
    pausing.deliver(findings)
    return findings


def _random_state_kept(model: object) -> AbstractContextManager[None]:
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    devices = {tensor.device for tensor in parameters if tensor.device.type == "cuda"}
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices=sorted(devices, key=str))
    return kept


def _check(model: nn.Module, reference: nn.Module, loss: Loss, rtol: float | None) -> list[Finding]:
    ranks = Ranks()
    pairs, buffers, relative = prepared(ranks, model, reference, loss, rtol)
    device = wire_device(ranks, pairs)
    weights_apart = {pair.name: copy_weight(ranks, pair, device) for pair in pairs}
    for pair in buffers:
        copy_weight(ranks, pair, device)
    trained = [pair for pair in pairs if pair.own.requires_grad]
    fetch = true_gradients(ranks, model, reference, pairs, loss, device)
    own = own_gradients(ranks, trained)
    measured, true_sq, numel = measure(own, fetch)
    lowered = compute_dtypes(model)
    on = "cuda" if any(pair.own.device.type == "cuda" for pair in pairs) else device.type
    spacings = [eps_of({pair.own.dtype, pair.reference.dtype} | lowered, on) for pair in trained]
    # From here on every rank decides from the same numbers: what follows has collectives in it.
    told = ranks.gather((measured, weights_apart, spacings, true_sq))
    true_sq = told[0][3]
    require_nonzero(ranks, [row[0] for row in told], true_sq)

    parts = partitions(model, ranks)
    known = known_factors(ranks.size, {part.label: part.size for part in parts if part.mesh_dim})
    true_rms = math.sqrt(true_sq / numel) if numel else 0.0
    ddp = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    suspects: list[Suspect] = []
    for index, mine in enumerate(own):
        pair = mine.pair
        seen = tuple(row[0][index] for row in told)
        tolerance = tolerance_of(max(row[2][index] for row in told), relative, true_rms)
        diagnosis = first_look(seen, tolerance, known)
        if diagnosis is None:
            continue
        error_after: float | None = None
        if diagnosis.cause == "unknown":
            diagnosis, error_after = pooled_look(ranks, mine, fetch(pair), seen, parts, tolerance, known)
        suspects.append(
            Suspect(
                name=pair.name,
                kind=mine.layout.kind or ("DDP" if ddp else "plain"),
                replicated_over=mine.layout.replicated_over,
                was_partial=mine.layout.was_partial,
                ranks=seen,
                diagnosis=diagnosis,
                tolerance=tolerance.relative,
                dtype=str(pair.own.dtype).removeprefix("torch."),
                weights_apart=tuple(row[1][pair.name] for row in told),
                error_after=error_after,
                tied_to=pair.tied_to,
            )
        )
    return findings_of(suspects, parts)
