"""Numbers that the program made itself stay known on the device, and through collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import Ledger
from tests.dry_runs import recorded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

WORLD = 4


def answered(ask: Callable[[], Any], rank: int = 0) -> tuple[Any, Ledger]:
    """Return what the program saw in its last step, and the ledger of that step."""
    seen: list[Any] = []

    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.Linear(8, 8, device="cuda")
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 8, device="cuda")).square().mean().backward()
            seen.append(ask())
            adam.step()

    ledger = recorded(train, world=WORLD, rank=rank)
    return seen[-1], ledger


def summed(**options: Any) -> Any:
    numbers = torch.tensor([3.0, 1.5], device="cuda")
    dist.all_reduce(numbers, **options)
    return numbers


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("SUM", [12.0, 6.0]), ("AVG", [3.0, 1.5]), ("MAX", [3.0, 1.5]), ("MIN", [3.0, 1.5])],
)
def test_ranks_reduce_equal_numbers(operation: str, expected: list[float]) -> None:
    kind = getattr(dist.ReduceOp, operation)
    assert answered(lambda: summed(op=kind).tolist())[0] == expected


def test_a_count_of_the_host_stays_known_on_the_device() -> None:
    def share() -> float:
        count = torch.tensor(5).to("cuda")
        dist.all_reduce(count)
        return float((count / dist.get_world_size()).item())

    assert answered(share)[0] == 5.0


def test_sums_and_counts_reduced_at_once_divide() -> None:
    def mean() -> float:
        both = torch.tensor([6.0, 4.0], dtype=torch.float64, device="cuda")
        dist.all_reduce(both)
        both /= 2
        total, count = both.tolist()
        return float(total / count + (both[0] / both[1]).item())

    assert answered(mean)[0] == 3.0


def test_gathered_and_broadcast_numbers_are_known() -> None:
    def gathered() -> list[int]:
        one = torch.tensor([7], device="cuda")
        many = [torch.zeros_like(one) for _ in range(WORLD)]
        dist.all_gather(many, one)
        whole = torch.zeros(WORLD, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(whole, one)
        dist.broadcast(one, 0)
        return [int(part.item()) for part in many] + whole.tolist() + one.tolist()

    assert answered(gathered)[0] == [7] * 9


def test_coalesced_gathers_keep_their_numbers_apart() -> None:
    def gathered() -> list[int]:
        given = [torch.tensor([number], device="cuda") for number in (1, 2)]
        whole = [torch.zeros(WORLD, dtype=torch.int64, device="cuda") for _ in given]
        with dist._coalescing_manager(device=torch.device("cuda")):
            for output, part in zip(whole, given, strict=True):
                dist.all_gather_into_tensor(output, part)
        return [*whole[0].tolist(), *whole[1].tolist()]

    assert answered(gathered)[0] == [1] * WORLD + [2] * WORLD


def assumed(ledger: Ledger) -> list[str]:
    return [text for text in ledger.frame("notices")["text"] if "equal on all ranks" in text]


@pytest.mark.parametrize(("rank", "expected"), [(0, 5), (1, 0)])
def test_only_the_root_knows_what_it_broadcasts(rank: int, expected: int) -> None:
    def ask() -> int:
        number = torch.tensor([5 if dist.get_rank() == 0 else 7], device="cuda")
        dist.broadcast(number, 0)
        return int(number.item())

    seen, ledger = answered(ask, rank)
    assert seen == expected
    answers = [text for text in ledger.frame("notices")["text"] if "item()" in text]
    assert len(answers) == (rank != 0)
    assert assumed(ledger) == []


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_equal_numbers_are_an_assumption_with_its_line(op: str) -> None:
    def ask() -> None:
        number = torch.tensor([5], device="cuda")
        if op == "all_reduce":
            dist.all_reduce(number)
        else:
            dist.all_gather_into_tensor(torch.zeros(WORLD, dtype=torch.int64, device="cuda"), number)

    (line,) = assumed(answered(ask)[1])
    assert line.startswith(f"numbers of an {op} were taken as equal on all ranks, 2 times, at ")
    assert "test_dryrun_known.py:" in line


def test_numbers_that_nobody_knows_are_no_assumption() -> None:
    assert assumed(answered(lambda: dist.all_reduce(torch.randn(4, device="cuda")))[1]) == []


def test_what_is_sent_to_a_root_stays_known() -> None:
    def ask() -> int:
        number = torch.tensor([5], device="cuda")
        dist.gather(number, None, 0)
        return int(number.item())

    assert answered(ask, rank=1)[0] == 5


def test_a_sum_of_bools_is_unknown() -> None:
    def ask() -> bool:
        flag = torch.tensor([True], device="cuda")
        dist.all_reduce(flag)
        return bool(flag.item())

    seen, ledger = answered(ask)
    assert seen is False
    assert any("item()" in text for text in ledger.frame("notices")["text"])


def test_views_see_what_a_collective_writes() -> None:
    def whole() -> list[float]:
        numbers = torch.tensor([3.0, 5.0], device="cuda")
        first = numbers[0]
        dist.all_reduce(numbers)
        return [first.item(), *numbers.tolist()]

    def part() -> list[float]:
        numbers = torch.tensor([3.0, 5.0], device="cuda")
        last = numbers[1]
        dist.all_reduce(last)
        return [last.item(), *numbers.tolist()]

    assert answered(whole)[0] == [12.0, 12.0, 20.0]
    assert answered(part)[0] == [20.0, 3.0, 20.0]


def test_views_of_what_becomes_unknown_are_unknown() -> None:
    def ask() -> list[float]:
        numbers = torch.tensor([3.0, 5.0], device="cuda")
        first = numbers[0]
        dist.all_reduce(numbers, op=dist.ReduceOp.PRODUCT)
        return [first.item(), *numbers.tolist()]

    assert answered(ask)[0] == [0.0, 0.0, 0.0]


def test_reading_a_known_number_waits_for_the_device() -> None:
    def waits(ask: Callable[[], Any]) -> int:
        rows = answered(ask)[1].tables["dry_waits"].to_pylist()
        return sum(row["stream"] is None for row in rows)

    assert waits(lambda: torch.tensor(1.0, device="cuda").item()) == waits(lambda: None) + 1


@pytest.mark.parametrize("spoil", ["random", "product", "loss"])
def test_what_nobody_knows_stays_unknown(spoil: str) -> None:
    def ask() -> float:
        number = torch.tensor([3.0], device="cuda")
        if spoil == "random":
            number.uniform_()
        elif spoil == "loss":
            number += torch.randn(8, device="cuda").mean()
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT if spoil == "product" else dist.ReduceOp.SUM)
        return float(number.item())

    assert answered(ask)[0] == 0.0


def test_batches_are_not_known() -> None:
    assert answered(lambda: torch.full((65,), 2.0).cuda().sum().item())[0] == 0.0
