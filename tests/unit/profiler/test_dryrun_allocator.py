"""How a program sets torch's allocator is recorded by its dry run, and its reserved memory follows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardtoll.analyzers.forecast.dry.memory import options_of, peak_memory
from shardtoll.ledger import Ledger
from shardtoll.ledger.records.dry import DryStorage
from shardtoll.ledger.tables.tables import to_records
from tests.dry_runs import recorded

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def train(call: str | None = None) -> Ledger:
    def program() -> None:
        if call is not None:
            torch._C._accelerator_setAllocatorSettings(call)
            torch.cuda.memory._set_allocator_settings(env=call)
        model = nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            # None fits into the segments of those before it.
            for megabytes in (30, 60, 120, 240):
                torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda").zero_()
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()

    return recorded(program)


def reserved_bytes(ledger: Ledger) -> float:
    storages: list[DryStorage] = to_records("dry_storages", ledger.tables["dry_storages"])
    return peak_memory(
        storages, (), 80 << 30, 32 << 20, ledger.run.allocator_settings
    ).reserved_bytes.expected


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_expandable_segments_reserve_less_where_sizes_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    without = train()
    assert without.run.allocator_settings is None
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    expandable = train()
    assert expandable.run.allocator_settings == "expandable_segments:True"
    assert reserved_bytes(expandable) < 0.95 * reserved_bytes(without)


def test_a_call_of_the_program_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    ledger = train(call="expandable_segments:False")
    assert ledger.run.allocator_settings == "expandable_segments:False"


@pytest.mark.parametrize(
    ("settings", "expandable", "split"),
    [
        (None, False, None),
        ("expandable_segments:True, max_split_size_mb:128", True, 128 << 20),
        ("max_split_size_mb:512,garbage_collection_threshold:0.8", False, 512 << 20),
        ("max_split_size_mb:20", False, None),
        ("max_split_size_mb:-5,expandable_segments:true", False, None),
        ("max_split_size_mb:99999999999", False, None),
        (":::,,max_split_size_mb:\u0663\u0663,\ud800", False, None),
    ],
)
def test_what_the_settings_say(settings: str | None, expandable: bool, split: int | None) -> None:
    options = options_of(settings)
    assert (options.expandable_segments, options.max_split_bytes) == (expandable, split)
