"""Calls as users write them, wrong ones too: the training sees what it would without us, capture goes on."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger.records import ddp_causes
from shardtoll.profiler import audit
from shardtoll.profiler.live.capture import watch
from shardtoll.profiler.live.cause import attribute
from shardtoll.profiler.live.cause.call import tensor_bytes
from shardtoll.profiler.live.session.session import Level, Session
from shardtoll.profiler.live.times.training import TrainingThread

Rows = list[dict[str, Any]]
LEVELS: tuple[Level, ...] = ("survey", "watch")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def world() -> Any:
    return dist.group.WORLD


def audited(step: Callable[[], object], level: Level, steps: int = 2) -> dict[str, Rows]:
    with audit(level=level) as session:
        for _ in range(steps):
            with session.step():
                step()
    return tables_of(session)


def tables_of(session: Session) -> dict[str, Rows]:
    assert session.ledger is not None
    return {name: table.to_pylist() for name, table in session.ledger.tables.items()}


def stopped(tables: dict[str, Rows]) -> list[str]:
    return [notice["text"] for notice in tables["notices"] if notice["kind"] == "capture-stopped"]


def issued(tables: dict[str, Rows]) -> list[str]:
    return [row["op"] for row in tables["collectives"] if row["step"] is not None]


@pytest.mark.parametrize("level", LEVELS)
def test_a_wait_by_keyword_is_timed_as_any(level: Level) -> None:
    def step() -> None:
        functional = torch.ops._c10d_functional
        result = functional.all_reduce(torch.ones(4), "sum", world().group_name)
        functional.wait_tensor(tensor=result)

    tables = audited(step, level)
    assert stopped(tables) == []
    assert [(row["op"], row["exposed_ns"] > 0) for row in tables["collectives"]] == [("all_reduce", True)] * 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_failure_of_ours_where_a_call_is_made_stops_the_capture_only(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(watch.CallSites, "site", broken)
    x = torch.ones(4)
    tables = audited(lambda: dist.all_reduce(x), level)
    (said,) = stopped(tables)
    assert "ZeroDivisionError" in said


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_the_users_ranges_for_another_tool_go_before_our_recording(level: Level, inside: bool) -> None:
    with audit(level=level) as session:
        for _ in range(3):
            with session.step():
                dist.all_reduce(torch.ones(4))
                if inside:
                    with torch.autograd.profiler.emit_itt():
                        torch.ones(4).sum()
            if not inside:
                # What gloo's thread has still to tell of the step is for our recording.
                time.sleep(0.01)
                with torch.autograd.profiler.emit_itt():
                    torch.ones(4).sum()
    tables = tables_of(session)
    assert stopped(tables) == []
    assert issued(tables).count("all_reduce") == 3
    assert len(tables["collectives"]) == 3


def test_ranges_that_are_switched_off_leave_our_recording_alone() -> None:
    def step() -> None:
        profiler = torch.autograd.profiler
        with profiler.emit_itt(enabled=False), profiler.emit_nvtx(enabled=False):
            dist.all_reduce(torch.ones(4))

    tables = audited(step, "watch", 3)
    assert all(row["duration_ns"] is not None for row in tables["collectives"])


def all_reduce_of(tensors: Any) -> None:
    world().allreduce(tensors).wait()


def functional(*arguments: Any) -> None:
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(*arguments))


MISTAKES: dict[str, Callable[[], None]] = {
    "a list with something else": lambda: all_reduce_of([torch.ones(2), "x"]),
    "nothing": lambda: all_reduce_of(None),
    "a number": lambda: all_reduce_of(3),
    "an empty list": lambda: all_reduce_of([]),
    "no such group": lambda: functional(torch.ones(2), "sum", "no such group"),
    "a group that is none": lambda: functional(torch.ones(2), "sum", 7),
    "too few": lambda: functional(torch.ones(2)),
    "another method's options": lambda: world().broadcast([torch.ones(2)], "root").wait(),
    "a method of nothing": lambda: dist.ProcessGroup.allreduce(None, [torch.ones(2)]).wait(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_call_is_refused_as_without_us_and_the_capture_goes_on(level: Level) -> None:
    def refusals() -> dict[str, str]:
        found = {}
        for name, call in MISTAKES.items():
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever torch says
                found[name] = f"{type(error).__name__}: {error}".partition("object at 0x")[0]
        return found

    plain = refusals()
    assert set(plain) == set(MISTAKES)

    def step() -> None:
        dist.all_reduce(torch.ones(4))
        assert refusals() == plain
        dist.broadcast(torch.ones(4), 0)

    tables = audited(step, level)
    assert stopped(tables) == []
    assert issued(tables) == ["all_reduce", "broadcast"] * 2


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_generator_gives_is_left_for_the_call(level: Level) -> None:
    """Where torch takes one at all: watched, the call is then known by the group's count alone."""
    x = torch.ones(2)

    def outcome() -> str:
        try:
            all_reduce_of(each for each in [x])
        except TypeError as error:
            return str(error).partition("object at 0x")[0]
        return "taken"

    plain = outcome()
    seen = []
    tables = audited(lambda: seen.append(outcome()), level)
    assert seen == [plain] * 2
    assert stopped(tables) == []
    unmatched = [row for row in tables["counts"] if row["issued"] != row["recorded"]]
    assert len(unmatched) == (2 if plain == "taken" and level == "watch" else 0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize("level", LEVELS)
def test_of_a_sparse_tensor_indices_and_values_are_sent(level: Level) -> None:
    counts = iter((1, 3, 2, 5))

    def step() -> None:
        many = next(counts)
        sparse = torch.sparse_coo_tensor(
            torch.arange(many).repeat(2, 1), torch.ones(many, 7), (100, 100, 7), check_invariants=True
        )
        dist.all_reduce(sparse)
        assert sparse._nnz() == many

    tables = audited(step, level, 4)
    assert stopped(tables) == []
    sizes = [(row["op"], row["message_bytes"], row["input_hash"]) for row in tables["collectives"]]
    assert sizes == [("all_reduce", many * (2 * 8 + 7 * 4), None) for many in (1, 3, 2, 5)]


@pytest.mark.parametrize("level", LEVELS)
def test_sparse_gradients_leave_the_capture_going(level: Level) -> None:
    table = torch.nn.Embedding(50, 4, sparse=True)

    def step() -> None:
        table(torch.tensor([3, 7])).sum().backward()
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(table.weight.grad)
        table.weight.grad = None

    with audit(table, level=level) as session, session.step():
        step()
    tables = tables_of(session)
    assert stopped(tables) == []
    assert [row["message_bytes"] for row in tables["collectives"]] == [16, 2 * (8 + 4 * 4)]


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_the_size_of_a_sparse_tensor_is_that_of_what_it_stores(layout: torch.layout) -> None:
    dense = torch.zeros(5, 5)
    dense[1, 2] = dense[4, 0] = 1
    sparse = dense.to_sparse(layout=layout).requires_grad_()  # type: ignore[no-untyped-call]
    indices = 2 * 2 if layout is torch.sparse_coo else 6 + 2
    assert tensor_bytes((sparse, dense)) == indices * 8 + 2 * 4 + 100


def nested(innermost: Callable[[], object], depth: int) -> None:
    """Call it below so many backwards: the deepest run on threads of autograd's."""

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                nested(innermost, depth - 1)
            return gradient

    if not depth:
        innermost()
        return
    x: torch.Tensor = Nested.apply(torch.ones(2, requires_grad=True))  # type: ignore[no-untyped-call]
    x.sum().backward()


def backward_that(issues: Callable[[], object], depth: int = 0) -> None:
    """Run a backward with a hook; of so many nested ones the innermost is on a thread of autograd's."""

    def innermost() -> None:
        y = torch.ones(2, requires_grad=True).clone()
        y.register_hook(lambda _: issues() and None)  # type: ignore[func-returns-value, no-untyped-call]
        y.sum().backward()

    nested(innermost, depth)


@pytest.fixture
def pool() -> Iterator[None]:
    """Autograd's own threads live on, and Python keeps those that it has met."""
    yield
    for thread in threading.enumerate():
        if isinstance(thread, threading._DummyThread):
            del threading._active[thread.ident]  # type: ignore[attr-defined]


def test_a_thread_of_the_users_that_runs_its_own_backward_is_not_the_training() -> None:
    own = dist.new_group([0])

    times = iter(range(5))

    def step() -> None:
        dist.all_reduce(torch.ones(4))
        many = next(times)

        def issue() -> None:
            for _ in range(many):
                dist.broadcast(torch.ones(3), 0, group=own)

        thread = threading.Thread(target=backward_that, args=(issue,))
        thread.start()
        thread.join()

    tables = audited(step, "schedule", 5)
    assert stopped(tables) == []
    assert [row["level"] for row in tables["steps"]] == ["survey", "watch", "survey", "watch", "watch"]
    assert [row for row in tables["counts"] if row["issued"] != row["recorded"]] == []
    rows = [(row["step"], row["op"]) for row in tables["collectives"]]
    assert sorted(rows) == [(at, op) for at in range(5) for op in ["all_reduce"] + ["broadcast"] * at]


def test_a_backward_of_the_trainings_on_a_thread_of_autograds_is_the_training(pool: None) -> None:
    threads: set[int] = set()

    def issue() -> None:
        threads.add(threading.get_ident())
        dist.broadcast(torch.ones(3), 0)

    tables = audited(lambda: backward_that(issue, 64), "schedule", 5)
    assert threads
    assert threading.get_ident() not in threads
    assert stopped(tables) == []
    assert [row for row in tables["counts"] if row["issued"] != row["recorded"]] == []
    assert [(row["op"], row["phase"]) for row in tables["collectives"]] == [("broadcast", "backward")] * 5


@pytest.mark.parametrize("depth", [0, 61])
def test_what_cpp_issues_on_a_thread_of_autograds_has_the_line_that_asked(pool: None, depth: int) -> None:
    """As DDP's reducer does on an accelerator, where no line of Python is on that thread's stack."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    threads: set[int] = set()
    model.module.weight.register_hook(lambda gradient: threads.add(threading.get_ident()))

    def train() -> None:
        model(torch.ones(2, 4)).sum().backward()

    tables = audited(lambda: nested(train, depth), "schedule", 5)
    assert (threads == {threading.get_ident()}) is (depth == 0)
    assert stopped(tables) == []
    rows = [row for row in tables["collectives"] if row["op"] == "all_reduce"]
    assert [row["step"] for row in rows] == list(range(5))
    assert {(row["phase"], row["caused_by_op"]) for row in rows} == {("backward", ddp_causes.REDUCER)}
    (source,) = {row["source"] for row in rows}
    assert source is not None
    assert re.fullmatch(r".*test_users_calls\.py:\d+ \((train|nested)\)", source)


def test_nodes_of_autograds_threads_are_not_taken_for_lines_of_the_training(
    pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread counts its nodes from 0; a hook in Python runs operators there."""
    # So deep a nesting makes more nodes than are otherwise taken for those of one operator.
    monkeypatch.setattr(attribute, "_MAX_JUMP", 10_000)
    gather: Any = getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd

    def hook() -> None:
        with torch.enable_grad():
            (torch.ones(2, requires_grad=True) * 2).sum()

    def gathered() -> torch.Tensor:
        result: torch.Tensor = gather(torch.ones(2, requires_grad=True), 0, dist.group.WORLD)
        return result

    def step() -> None:
        first = gathered()
        backward_that(hook, 64)
        (torch.ones(2, requires_grad=True) * 3).sum()
        # Not every torch scatters the gradient of a sum, which is one number spread out.
        (first * torch.ones(first.shape)).sum().backward()

    tables = audited(step, "survey", 2)
    assert stopped(tables) == []
    sources = [row["source"] for row in tables["collectives"] if row["op"] == "reduce_scatter"]
    assert len(sources) == 2
    assert all(source is not None and source.endswith("(gathered)") for source in sources)


def test_the_mark_of_the_training_is_gone_with_the_session(pool: None) -> None:
    training = TrainingThread()
    found: list[bool] = []
    for mark in (training.mark, training.unmark):
        mark()
        backward_that(lambda: found.append(training.is_here()), 64)
        backward_that(lambda: found.append(training.is_here()))
    assert found == [True, True, False, True]


def test_two_threads_of_one_backward_may_issue_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two devices' do: while one is inside a call, the other's is seen too."""
    monkeypatch.setattr(TrainingThread, "is_here", lambda self: True)
    inside, over = threading.Event(), threading.Event()
    group = world()
    bare = dist.ProcessGroup.allreduce

    def slow(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == other.ident:
            inside.set()
            assert over.wait(20)
        return bare(*args, **kwargs)

    monkeypatch.setattr(dist.ProcessGroup, "allreduce", slow)
    other = threading.Thread(target=lambda: group.allreduce([torch.ones(4)]).wait())

    def step() -> None:
        other.start()
        assert inside.wait(20)
        group.broadcast(torch.ones(4), 0).wait()
        over.set()
        other.join()

    assert sorted(issued(audited(step, "watch", 1))) == ["all_reduce", "broadcast"]


def test_a_watched_sum_tells_gradients_from_values_whatever_the_surveyed_one_was_of() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.zeros(2, 2)
    with audit(model, level="schedule") as session:
        for number in range(12):
            with session.step(), torch.no_grad():
                dist.all_reduce(model.weight.data if number % 3 else model.weight.grad)
    collectives = tables_of(session)["collectives"]
    assert {row["parameter"] for row in collectives} == {"weight"}
    assert [row["of_values"] for row in collectives] == [number % 3 > 0 for number in range(12)]


@pytest.mark.parametrize("level", ["schedule", "watch"])
def test_a_closed_session_keeps_no_process_group(level: Level) -> None:
    group = dist.new_group([0])
    known = weakref.ref(group)
    session = audit(level=level)
    with session:
        for _ in range(5):
            with session.step():
                dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert known() is None
    assert len(issued(tables_of(session))) == 5
