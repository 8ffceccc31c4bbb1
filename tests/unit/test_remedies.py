"""Each remedy carries the code to write: Python that parses, and that names the place.

Besides this file, every finding that a test of the analyzers makes is looked at (analyzers/conftest.py).
"""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from shardtoll.analyzers.findings.exposed import exposed_remedies, serialized_collectives
from shardtoll.analyzers.findings.needless import implicit_redistribute, latency_bound
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.headline.advice import IMPERATIVES
from shardtoll.analyzers.shared import remedy_code
from shardtoll.ledger import KINDS, Finding, Remedy, Where
from shardtoll.ledger.records.volume import OPS
from shardtoll.profiler.live.gradients.diagnosis import Cause, Diagnosis
from shardtoll.profiler.live.gradients.remedies import for_all, remedy_of
from shardtoll.profiler.live.gradients.shards import Partition
from tests.unit.remedies import check_code

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = {
    "unattributed_time.py",
    "clock_skew.py",
    "incomplete_input.py",
    "unmatched_collectives.py",
    "counted.py",
}
"""Files that speak of the record itself (family trust): there is no code to change there."""
HOSTILE = "a\"b'\n\\c\x1b\u2028#"
PHASES = ("forward", "backward", "recompute", "optimizer", "other")


def made(remedy: Remedy) -> str:
    """Return the remedy's code, looked at."""
    check_code(Finding("straggler", "info", "made up", None, None, None, None, 1, (0,), Where(), (), remedy))
    assert remedy.code is not None
    return remedy.code


def _calls() -> list[tuple[str, ast.Call]]:
    return [
        (path.name, node)
        for folder in ("analyzers", "profiler")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Remedy"
    ]


def test_no_remedy_is_written_without_code():
    calls = _calls()
    assert len(calls) > 20
    for name, call in calls:
        if name in WITHOUT:
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        given += call.args[1:2]
        assert given or starred, f"{name}:{call.lineno}: a Remedy without code"
        nothing = [value for value in given if isinstance(value, ast.Constant) and not value.value]
        assert not nothing, f"{name}:{call.lineno}: a Remedy whose code is {ast.unparse(nothing[0])}"


def test_only_trust_kinds_may_do_without():
    for name in sorted(WITHOUT):
        (path,) = (ROOT / "analyzers").rglob(name)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & set(KINDS)
        assert {KINDS[kind] for kind in kinds} <= {"trust"}, name


def _beginnings(node: ast.expr, constants: dict[str, ast.expr]) -> list[str]:
    """Return how the texts that an expression may be begin, as far as the source tells."""
    if isinstance(node, ast.IfExp):
        return [*_beginnings(node.body, constants), *_beginnings(node.orelse, constants)]
    if isinstance(node, ast.BinOp):
        return _beginnings(node.left, constants)
    if isinstance(node, ast.JoinedStr):
        return _beginnings(node.values[0], constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _beginnings(constants[node.id], constants)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _texts() -> list[tuple[str, str]]:
    """Return (file and line, beginning) of each text that is written where a remedy is made."""
    texts = []
    for path in sorted(
        path for folder in ("analyzers", "profiler") for path in (ROOT / folder).rglob("*.py")
    ):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
        constants = {
            name.id: node.value
            for node in assigned
            for name in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(name, ast.Name) and node.value is not None
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            named = [keyword.value for keyword in node.keywords if keyword.arg == "text"]
            place = {"Remedy": 0, "Advice": 0, "_Advice": 3 if len(node.args) > 3 else 0}.get(node.func.id)
            if place is None:
                continue
            for text in [*node.args[place : place + 1], *named]:
                texts += [(f"{path.name}:{node.lineno}", each) for each in _beginnings(text, constants)]
    return texts


def test_remedies_begin_with_an_order():
    texts = _texts()
    assert len(texts) > 60
    words = {(where, text.split()[0]) for where, text in texts if text.split()}
    # "First see what ... sends" names the order after its adverb.
    assert {each for each in words if each[1].rstrip(",.") not in {*IMPERATIVES, "First"}} == set()


@pytest.mark.parametrize(
    "cause", [*sorted({advice.cause for advice in exposed_remedies._ADVICE}), "nobody knows"]
)
def test_exposed_communication(cause: str):
    for op, phase in product((*sorted(OPS), "unknown", ""), PHASES):
        made(exposed_remedies.remedy(cause, op, phase))


@pytest.mark.parametrize("size", [None, 1, 64 << 20])
def test_buckets(size: int | None):
    made(exposed_remedies.remedy("DistributedDataParallel.reducer", "all_reduce", "backward", size))


def test_implicit_redistributes():
    shards = [
        "(Shard(dim=0),)",
        "(Shard(dim=1),)",
        "(Shard(1), Replicate())",
        "(_StridedShard(dim=0, sf=2),)",
    ]
    placed = [None, "(Replicate(),)", "(Partial(sum),)", *shards]
    wheres = [
        (None, None, None, None),
        ("0.weight", "blocks.0", "t.py:3 (f)", "tp"),
        (HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        (None, "blocks.*", None, "tp"),
    ]
    for before, after, phase, cause in product(
        placed, placed, PHASES, ("aten.mm.default", "aten.add.Tensor")
    ):
        plain = implicit_redistribute._remedy(cause, before, after, phase, 5, [])
        for where in wheres:
            made(implicit_redistribute._located(plain, *where))


def test_an_implicit_redistribute_names_its_place():
    plain = implicit_redistribute._remedy(
        "aten.mm.default", "(Shard(0),)", "(Replicate(),)", "forward", 5, ["argument 1 (mat2), [32, 16]"]
    )
    code = made(implicit_redistribute._located(plain, None, "blocks.0", "train.py:7 (step)", "model"))
    assert "name the other operand of aten.mm.default" in code
    assert code.endswith("# for train.py:7 (step)")
    plain = implicit_redistribute._remedy("x", "(Partial(sum),)", "(Replicate(),)", "optimizer", 5, [])
    assert 'model.get_parameter("norm.weight")' in made(
        implicit_redistribute._located(plain, "norm.weight", None, None, None)
    )


def test_latency_bound():
    for op, phase, dim in product((*sorted(OPS), "unknown"), PHASES, (None, "tp", HOSTILE)):
        for source in (None, "train.py:7 (step)", HOSTILE):
            code = made(latency_bound._remedy(op, phase, 40, dim, source))
        assert dim != "tp" or phase == "optimizer" or 'mesh.get_group("tp")' in code


def test_serialized_collectives():
    for op, after in product(OPS, ("all_reduce on mesh dim dp", "all_gather on group 3", "x", None, HOSTILE)):
        code = made(Remedy("X", serialized_collectives._code(op, after, "tp")))
    assert 'dist.all_reduce(a, group=mesh.get_group("dp"), async_op=True)' in serialized_collectives._code(
        "all_gather", "all_reduce on mesh dim dp", "tp"
    )
    assert code


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("part", [None, *late_remedies.WORDS])
def test_late_ranks(part: str | None, on_cpu: bool):
    for phase in (None, *PHASES):
        remedy = Remedy(*late_remedies.remedy(part, phase, 3, on_cpu=on_cpu))
        made(remedy)
        assert late_remedies.measures(part) == remedy.text.startswith("Record ")


def test_clocks_are_read_by_the_tool_of_the_maker_of_the_gpu():
    def of(device: str | None) -> str:
        return " ".join(
            filter(None, late_remedies.remedy("compute_ns", None, 3, on_cpu=False, device=device))
        )

    assert "rocm-smi" not in of("NVIDIA A100-SXM4-80GB")
    assert "nvidia" not in of("AMD Instinct MI300X")
    assert "nvidia-smi -q (or rocm-smi)" in of(None)


CAUSES: tuple[Cause, ...] = (
    "missing-reduction", "wrong-scale", "replicas-differ",
    "missing", "extra", "zero", "not-finite", "unknown",
)  # fmt: skip
PARTITIONS = (
    Partition("mesh dim 'tp'", "tp", None, ((0, 1), (0, 1))),
    Partition("all ranks", None, None, ((0, 1), (0, 1))),
)


@pytest.mark.parametrize("name", ["blocks.0.weight", "weight", "parts.0", HOSTILE])
@pytest.mark.parametrize("cause", CAUSES)
def test_wrong_gradients(cause: Cause, name: str):
    for partition, factor, factor_name, hidden, wrapper, differ, holders in product(
        PARTITIONS,
        (0.5, 2.0, 1024.0), (None, "sum", "mean", "1 / the world size", "the world size"),
        (False, True), (None, "DDP"), (False, True), ((0, 1), (1,)),
    ):  # fmt: skip
        remedy = remedy_of(
            Diagnosis(cause, (0, 1), 0, factor, factor_name), name, partition=partition,
            partial_hidden=hidden, wrapper=wrapper, weights_differ=differ, holders=holders,
        )  # fmt: skip
        made(remedy)
        made(for_all(remedy, name, 30))


def test_names_cannot_leave_their_quotes():
    for write in (remedy_code.module, remedy_code.parameter, remedy_code.mesh):
        ast.parse(write(HOSTILE))
    assert remedy_code.module("") == "model"
    assert remedy_code.module("a.*.b") == "block"
    assert "\n" not in remedy_code.at(HOSTILE)
