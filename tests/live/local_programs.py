"""One 2-D program, run by four gloo ranks, and by torch's LocalTensorMode that plays all four in one process.

Tensor and sequence parallel over tp, and the gradients of dp's two halves averaged by hand: FSDP2 frees the
storage of its parameters, which a LocalTensor has none of. Nothing is shared but the program: collectives are
gloo's there, sums over a dict of tensors here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from shardtoll.profiler.live.gradients.gradients import check_gradients
from tests.live import mutation_models as models

DP, TP = 2, 2
VARIANTS = ("right", "one not reduced", "reduced over the wrong dim", "summed")
BROKEN = "blocks.0.up.weight"
Batch = tuple[torch.Tensor, torch.Tensor]


def halves() -> list[Batch]:
    """What each place of dp sees of the global batch."""
    tokens, targets = models.data()
    each = models.SAMPLES // DP
    return list(zip(tokens.split(each), targets.split(each), strict=True))


def trained(variant: str, mine: Callable[[], Batch]) -> nn.Module:
    """Run one step on what `mine` gives."""
    mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    model, _ = models.pair()
    models.tensor_parallel(model, mesh["tp"])
    models.loss_of(model, *mine()).backward()
    for name, parameter in model.named_parameters():
        dim = "dp"
        if name == BROKEN and variant != "right":
            if variant == "one not reduced":
                continue
            if variant == "reduced over the wrong dim":
                dim = "tp"
        assert isinstance(parameter.grad, DTensor)
        local = parameter.grad.to_local()
        dist.all_reduce(local, group=mesh[dim].get_group())
        if not (name == BROKEN and variant == "summed"):
            local /= DP
    return model


def by_gloo() -> dict[str, Any]:
    """By variant: this rank's gradients, and which the check flags."""
    found: dict[str, Any] = {}
    mine = halves()[dist.get_rank() // TP]
    tokens, targets = models.data()
    for variant in VARIANTS:
        model = trained(variant, lambda: mine)
        gradients = {name: p.grad.to_local().tolist() for name, p in model.named_parameters()}
        _, reference = models.pair()
        findings = check_gradients(model, reference, lambda module: models.loss_of(module, tokens, targets))
        found[variant] = {
            "gradients": gradients,
            "flagged": sorted(finding.where.parameter or "" for finding in findings),
        }
    return found


def by_local_tensors() -> dict[str, Any]:
    """By variant: every rank's gradients, and which are wrong against one device's in float64."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=DP * TP, store=FakeStore())
    shares = halves()
    _, reference = models.pair()
    wide = reference.double()
    models.loss_of(wide, *models.data()).backward()

    def mine(mode: Any) -> Batch:
        tokens, targets = (mode.rank_map(lambda rank, n=n: shares[rank // TP][n]) for n in (0, 1))
        return tokens, targets

    found: dict[str, Any] = {}
    for variant in VARIANTS:
        with LocalTensorMode(DP * TP) as mode:
            model = trained(variant, partial(mine, mode))
            gradients = {name: p.grad for name, p in model.named_parameters()}
            shards = {name: _by_rank(gradient.to_local()) for name, gradient in gradients.items()}
            full = {name: _by_rank(gradient.full_tensor()) for name, gradient in gradients.items()}
        wrong = [
            name
            for name, parameter in wide.named_parameters()
            if any(
                (part.double() - parameter.grad).norm() > 1e-3 * parameter.grad.norm() for part in full[name]
            )
        ]
        ranks = range(DP * TP)
        found[variant] = {
            "gradients": [{name: parts[rank].tolist() for name, parts in shards.items()} for rank in ranks],
            "wrong": sorted(wrong),
        }
    return found


def _by_rank(tensor: Any) -> list[torch.Tensor]:
    tensor = getattr(tensor, "elem", tensor)  # of an AsyncCollectiveTensor
    return [tensor._local_tensors[rank] for rank in sorted(tensor._local_tensors)]


if __name__ == "__main__":
    json.dump(by_local_tensors(), sys.stdout)
