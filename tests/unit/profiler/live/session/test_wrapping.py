"""Wrappers of a parameter that two of them have, or that one has by other means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from shardtoll.profiler.live.session import wrapping
from shardtoll.profiler.live.session.wrapping import Wrapped, wrappers_of


class Sharded(nn.Module):
    """As `fully_shard` leaves a module: it keeps a state, and manages one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def _get_fsdp_state(self) -> Any:
        managed = [SimpleNamespace(sharded_param=parameter) for parameter in self.trunk.parameters()]
        mesh = SimpleNamespace(shard_process_group="dp")
        return SimpleNamespace(_fsdp_param_group=SimpleNamespace(mesh_info=mesh, fsdp_params=managed))


def ddp_of(module: nn.Module, **given: Any) -> Any:
    """Return what `wrappers_of` reads of a DDP."""
    return SimpleNamespace(module=module, process_group="pg", **given)


def of_name(model: nn.Module) -> dict[str, Wrapped]:
    found = wrappers_of(model)
    return {name: found[id(parameter)] for name, parameter in model.named_parameters()}


def test_a_layer_of_ddp_inside_of_what_fsdp2_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """`replicate(model.head); fully_shard(model)`: FSDP2 leaves the head to DDP."""
    model = Sharded()
    assert of_name(model)["head.weight"] == Wrapped("FSDP2", None, False)
    monkeypatch.setattr(wrapping, "_ddps", lambda *_, **__: [ddp_of(model.head)])
    found = of_name(model)
    assert found["head.weight"] == Wrapped("DDP", "pg", True)
    assert found["trunk.weight"] == Wrapped("FSDP2", "dp", True)
    # FSDP2 keeps all that it manages, whoever else has it.
    monkeypatch.setattr(wrapping, "_ddps", lambda *_, **__: [ddp_of(model)])
    assert of_name(model)["trunk.weight"] == Wrapped("FSDP2", "dp", True)


def test_what_ddp_is_given_to_ignore(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is meant so; a layer that came after wrapping is on none, and delayed ones are reduced."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    ddp = ddp_of(
        model,
        _module_parameters=list(model[0].parameters()),
        _delay_all_reduce_params=[model[1].bias],
        parameters_to_ignore={"1.weight", "1.bias"},
    )
    monkeypatch.setattr(wrapping, "_ddps", lambda *_, **__: [ddp])
    found = of_name(model)
    assert [name for name, of in found.items() if of.ignored] == ["1.weight"]
    assert [found[name].reduces for name in ("0.bias", "1.weight", "1.bias", "2.bias")] == [
        True,
        False,
        True,
        False,
    ]


def test_gradients_that_ddp_delays_are_reduced_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`delay_all_reduce_named_params`: the reducer never has them, and DDP sends them itself."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    delayed = list(model[1].parameters())
    ddp = ddp_of(model, _module_parameters=list(model[0].parameters()), _delay_all_reduce_params=delayed)
    monkeypatch.setattr(wrapping, "_ddps", lambda *_, **__: [ddp])
    assert [of_name(model)[name].reduces for name in ("0.weight", "1.weight")] == [True, True]
    ddp._delay_all_reduce_params = delayed[:1]
    assert of_name(model)["1.bias"].reduces is False
