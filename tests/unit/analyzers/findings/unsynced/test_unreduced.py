"""A gradient that no collective carries, found without values; and all that must keep it silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.ledger import Collective, Count, Finding, Group, Parameter
from shardtoll.ledger.records.ddp_causes import REDUCER
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, parameter, value

SIDE = 32
BYTES = SIDE * SIDE * 4
LINE = "train.py:31 (sync)"
LAYERS = ("a.weight", "b.weight", "c.weight", "head.weight")
REDUCED = LAYERS[:3]
WORLD = Group("pg", (0, 1))


def held(names=LAYERS, ranks=(0, 1), **given: Any) -> list[Parameter]:
    """Return what a run without checks has on record of these parameters."""
    plain: dict[str, Any] = {"has_grad": None, "used_in": 0, "carried": False, "checked": False}
    return [parameter(name, rank, (SIDE, SIDE), **(plain | given)) for name in names for rank in ranks]


def sums(names=REDUCED, ranks=(0, 1), **given: Any) -> list[Collective]:
    """Return an all_reduce of each of these gradients, by hand after backward."""
    plain: dict[str, Any] = {
        "phase": "other",
        "message_bytes": BYTES,
        "source": LINE,
        "reduce_op": "avg",
        "of_values": False,
    }
    return [
        row
        for seq, name in enumerate(names)
        for row in on_ranks(ranks, **(plain | {"seq": seq, "parameter": name} | given))
    ]


def found(
    parameters=None, collectives=None, groups=(WORLD,), steps=None, ranks=2, **given: Any
) -> list[Finding]:
    made = ledger(
        sums() if collectives is None else collectives,
        parameters=held() if parameters is None else parameters,
        groups=groups,
        steps=[step(0, rank) for rank in range(ranks)] if steps is None else steps,
        run=run_of(ranks),
        **given,
    )
    return list(running("unsynced-parameter")(made).findings)


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def changed(rows: list[Parameter], name: str, rank: int | None = None, **given: Any) -> list[Parameter]:
    return [replace(row, **given) if row.name == name and rank in (None, row.rank) else row for row in rows]


def extra(**given: Any) -> list[Collective]:
    """Return the reductions by hand, and one message more on both ranks."""
    return [*sums(), *on_ranks((0, 1), **({"seq": 9, "phase": "other", "message_bytes": BYTES} | given))]


# -- found -----------------------------------------------------------------------------------------------


def test_a_layer_left_out_by_hand():
    (one,) = found()
    assert (one.severity, one.confidence, one.cause) == ("warning", "likely", "missing-reduction")
    assert (one.where.parameter, one.where.source, one.ranks) == ("head.weight", LINE, (0, 1))
    assert "while 3 other gradients are reduced at train.py:31 (sync)" in one.title
    assert "--checks gradients" in one.remedy.text
    assert one.remedy.code == (
        'dist.all_reduce(model.get_parameter("head.weight").grad, op=dist.ReduceOp.AVG)'
    )
    assert evidence(one)["values"] == "not compared"


def test_sums_are_divided_as_the_others_are():
    (one,) = found(collectives=sums(reduce_op="sum"))
    assert one.remedy.code.endswith(".grad)  # and divide it as the others are")


@pytest.mark.parametrize(
    ("mesh_dim", "group"),
    [(None, "group=group)  # the group of train.py:31 (sync)"), ("dp", 'group=mesh.get_group("dp"))')],
)
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_the_fix_reduces_over_the_ranks_of_the_others(mesh_dim, group, op):
    """Two pairs of four ranks: the default group would mix what the pairs hold."""
    pairs = [Group("dp", pair, mesh_dim) for pair in ((0, 2), (1, 3))]
    reduced = [
        row for pair in pairs for row in sums(ranks=pair.ranks, group="dp", mesh_dim=mesh_dim, reduce_op=op)
    ]
    names = (*LAYERS, "head.bias")
    for held_names in (LAYERS, names):
        (one,) = found(held(held_names, ranks=range(4)), reduced, pairs, ranks=4)
        assert group in one.remedy.code
        assert one.remedy.code.endswith("divide it as the others are") is (op == "sum")
        assert one.remedy.code.count("  #") == (mesh_dim is None or op == "sum")


def test_two_of_one_layer_are_one_finding():
    (one,) = found(held((*LAYERS, "head.bias")))
    assert one.parameters == ("head.weight", "head.bias")
    assert "head.weight and head.bias take part in no reduction" in one.title
    assert 'for name in ("head.weight", "head.bias"):' in one.remedy.code


def test_it_stands_before_costs_and_in_the_verdict():
    made = ledger(sums(), parameters=held(), groups=(WORLD,), steps=[step(0, rank) for rank in (0, 1)])
    report = running("unsynced-parameter", "exposed-communication", "latency-bound")(made)
    assert report.findings[0].kind == "unsynced-parameter"
    assert report.verdict.startswith("To check first: head.weight takes part in no reduction")


def test_a_call_of_many_tensors_that_were_seen():
    """Only the first is named; the table says which others were in it."""
    rows = [replace(row, carried=row.name in REDUCED) for row in held()]
    call = sums(("a.weight",), message_bytes=3 * BYTES, parameter="a.weight, ... (3 parameters)")
    (one,) = found(rows, call)
    assert one.where.parameter == "head.weight"
    assert found([replace(row, carried=True) for row in held()], call) == []


TEN = tuple(f"{number}.weight" for number in range(10))


def calls(flat: int = 0, op: str = "all_reduce") -> list[Collective]:
    """Return two calls of four of the ten each; the second has as many more in a flat tensor."""
    first = sums(TEN[:1], message_bytes=4 * BYTES, parameter="0.weight, ... (4 parameters)")
    whole = (4 + flat) * BYTES
    more = {"seq": 1, "message_bytes": whole, "parameter": "4.weight, ... (4 parameters)", "op": op}
    return [*first, *sums(TEN[4:5], **more)]


def test_several_calls_of_many_tensors_hold_together_what_was_seen():
    rows = [replace(row, carried=row.name in TEN[:8]) for row in held(TEN)]
    (one,) = found(rows, calls())
    assert one.parameters == TEN[8:]
    assert found(rows, calls(flat=2)) == []


def test_calls_that_hold_a_part_of_what_was_seen_hold_the_smallest():
    """As one of four of the five: the fifth was seen in another step."""
    rows = [replace(row, carried=row.name in TEN[:5]) for row in held(TEN)]
    made = [*calls()[:2], *sums(TEN[5:9])]
    (one,) = found(rows, made)
    assert one.where.parameter == "9.weight"
    small = changed(rows, "4.weight", shape="[4]", local_shape="[4]", numel=4)
    assert found(small, made) == []


def test_a_group_that_reduces_a_part_of_what_was_seen_is_not_that_of_gradients():
    """Four of ten are added up, and four others sent by their owner."""
    rows = [replace(row, carried=row.name in TEN[:8]) for row in held(TEN)]
    assert found(rows, calls(op="broadcast")) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_sent_in_a_narrower_dtype(dtype):
    """Each by itself they name all they hold; two of them in one message name one."""
    narrow = {"dtype": dtype, "message_bytes": BYTES // 2}
    (one,) = found(collectives=sums(**narrow))
    assert one.where.parameter == "head.weight"
    in_pairs = narrow | {"message_bytes": BYTES}
    assert found(collectives=sums(("a.weight", "c.weight"), **in_pairs)) == []


def wrapped(by: str, **given: Any) -> list[Parameter]:
    rows = held(wrapper=by, group="pg", reduced_by_wrapper=True)
    return changed(rows, "head.weight", **given)


BUCKET = {"caused_by_op": REDUCER, "phase": "backward", "message_bytes": 3 * BYTES}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"reduced_by_wrapper": False, "group": None}, "ignore nothing"),
        ({"reduced_by_wrapper": None, "wrapper": None, "group": None}, "with head in it"),
    ],
)
def test_what_ddp_does_not_know(given, code):
    (one,) = found(wrapped("DDP", **given), sums(("a.weight",), **BUCKET))
    assert "while DDP reduces 3 other gradients" in one.title
    assert code in one.remedy.code


def test_what_ddp_was_made_to_ignore_is_possible():
    """It may be meant so: it says so, and leads no verdict. A layer added late stays likely, by itself."""
    rows = wrapped("DDP", reduced_by_wrapper=False, ignored=True)
    late = held(("late.weight",), wrapper="DDP", group="pg", reduced_by_wrapper=False, ignored=False)
    listed, added = sorted(
        found([*rows, *late], sums(("a.weight",), **BUCKET)), key=lambda one: str(one.where.parameter)
    )
    assert (listed.where.parameter, listed.confidence, listed.doubts_training) == (
        "head.weight",
        "possible",
        False,
    )
    assert "as DDP was made to ignore it, while DDP reduces 3 other gradients" in listed.title
    assert "off the list" in listed.remedy.text
    assert (added.where.parameter, added.confidence, added.doubts_training) == ("late.weight", "likely", True)
    assert "ignore" not in added.title


def test_how_many_ddp_reduces_may_be_unknown():
    """Some of what it has were frozen as it was made, and only its buckets say which."""
    rows = changed(held(wrapper="DDP", group="pg"), "head.weight", wrapper=None, group=None)
    (one,) = found(rows, sums(("a.weight",), **BUCKET))
    assert "head.weight takes part in no reduction, while DDP reduces others:" in one.title
    assert (one.confidence, evidence(one)["gradients reduced over the same ranks"]) == ("likely", None)


@pytest.mark.parametrize(
    ("wrapper", "cause", "call"),
    [
        ("DDP", REDUCER, "model = DistributedDataParallel(model)"),
        ("FSDP1", "FullyShardedDataParallel", "model = FullyShardedDataParallel(model)"),
        ("FSDP2", "FSDP.reduce_scatter", "fully_shard(model)"),
    ],
)
@pytest.mark.parametrize("reduces", [False, None])
def test_the_fix_calls_the_wrapper_that_is_there(wrapper, cause, call, reduces):
    outside = {"wrapper": None, "group": None} if reduces is None else {"group": None}
    rows = wrapped(wrapper, reduced_by_wrapper=reduces, **outside)
    (one,) = found(rows, sums(("a.weight",), **(BUCKET | {"caused_by_op": cause})))
    assert call in one.remedy.code.replace("model.head = ...  # first\n", "").split("  #")[0]


def test_what_fsdp2_was_not_given():
    rows = wrapped("FSDP2", reduced_by_wrapper=None, wrapper=None, group=None)
    rows = [
        replace(row, placements="(Shard(0),)", mesh_dims="dp", local_shape="[16, 32]") if row.wrapper else row
        for row in rows
    ]
    scattered = sums(("a.weight",), op="reduce_scatter", caused_by_op="FSDP.reduce_scatter", phase="backward")
    (one,) = found(rows, scattered)
    assert "while FSDP2 reduces 3 other gradients" in one.title


@pytest.mark.parametrize("phase", ["forward", "backward", "other"])
def test_a_norm_of_all_gradients_and_a_loss_carry_none(phase):
    (one,) = found(collectives=extra(message_bytes=8, phase=phase))
    assert one.where.parameter == "head.weight"


def test_what_was_sent_before_the_first_step_is_no_reduction():
    early = on_ranks((0, 1), step=None, op="broadcast", parameter="head.weight", issue_ns=0, start_ns=0)
    begun = [step(0, rank, start_ns=1 * MS // 2) for rank in (0, 1)]
    (one,) = found(collectives=[*early, *sums()], steps=begun)
    assert one.where.parameter == "head.weight"


def test_over_one_dimension_of_two():
    """Tensor parallelism exchanges activations over pairs; data parallelism reduces over the others."""
    groups = [Group("tp", (0, 1)), Group("tp", (2, 3)), Group("dp", (0, 2)), Group("dp", (1, 3))]
    forward = [
        row
        for pair in ((0, 1), (2, 3))
        for row in on_ranks(pair, group="tp", phase="forward", message_bytes=BYTES)
    ]
    reduced = [row for pair in ((0, 2), (1, 3)) for row in sums(ranks=pair, group="dp")]
    (one,) = found(held(ranks=range(4)), [*forward, *reduced], groups, ranks=4)
    assert (one.where.parameter, one.ranks) == ("head.weight", (0, 1, 2, 3))


# -- silent ----------------------------------------------------------------------------------------------


def test_a_sound_loop():
    assert found(collectives=sums(LAYERS)) == []


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"requires_grad": False}, id="frozen"),
        pytest.param({"used_in": None}, id="no gradient, or no optimizer took it"),
        pytest.param({"used_in": 7}, id="used in a step in which nobody reduced"),
        pytest.param({"tied_to": "a.weight"}, id="tied"),
        pytest.param({"carried": True}, id="seen in a call of many"),
        pytest.param({"checked_right": True, "checked": True}, id="checked against one device"),
        pytest.param({"wrapper": "DDP", "reduced_by_wrapper": True}, id="reduced by a wrapper"),
        pytest.param({"wrapper": "DDP", "reduced_by_wrapper": None}, id="only DDP's buckets know"),
        pytest.param({"placements": "(Shard(0),)", "mesh_dims": "pg"}, id="a shard over these ranks"),
        pytest.param({"placements": "(Replicate(),)", "mesh_dims": None}, id="a mesh without names"),
    ],
)
def test_silent_by_the_parameter(given):
    assert found(changed(held(), "head.weight", **given), groups=(Group("pg", (0, 1), "pg"),)) == []


@pytest.mark.parametrize("given", [{"used_in": None}, {"local_shape": "[16, 32]"}, {"requires_grad": False}])
def test_silent_if_one_rank_has_it_otherwise(given):
    assert found(changed(held(), "head.weight", 1, **given)) == []


def test_silent_if_a_rank_has_no_such_parameter():
    assert found([row for row in held() if (row.name, row.rank) != ("head.weight", 1)]) == []


def test_silent_if_ranks_hold_different_models():
    """As the first and the last stage of a pipeline, which reduce the embedding that both have."""
    rows = held()
    assert len(found([*rows, *held(("more.weight",))])) == 1
    assert found([*rows, *held(("more.weight",), ranks=(1,))]) == []


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="one flat buffer"),
        pytest.param({"message_bytes": None}, id="of unknown size"),
        pytest.param({"message_bytes": SIDE}, id="compressed to rank one and a byte"),
        pytest.param({"op": "all_gather"}, id="gathered and averaged"),
        pytest.param({"parameter": "head.weight", "of_values": True}, id="its values are averaged"),
        pytest.param({"parameter": "head.weight", "op": "broadcast"}, id="sent by its owner"),
        pytest.param({"parameter": "a.weight", "message_bytes": 2 * BYTES}, id="a bucket with one name"),
        pytest.param(
            {"parameter": "a.weight", "message_bytes": BYTES // 4}, id="the largest of what it names"
        ),
        pytest.param({"parameter": "a.weight, ... (4 parameters)"}, id="many that were not seen"),
        pytest.param({"phase": "forward"}, id="activations, as in tensor parallelism"),
        pytest.param({"phase": "forward", "op": "all_to_all"}, id="tokens, as of experts"),
        pytest.param({"phase": "recompute", "op": "all_gather"}, id="activations again"),
        pytest.param({"step": None, "issue_ns": 200 * MS, "start_ns": 200 * MS}, id="between steps"),
    ],
)
def test_silent_by_another_message(given):
    if given.get("parameter", "").endswith("(4 parameters)"):
        given = given | {"message_bytes": 4 * BYTES}
    assert found(collectives=extra(**given)) == []


@pytest.mark.parametrize("root", [1, None])
def test_silent_in_a_pipeline(root):
    sent = [collective(rank=0, op="send", root=root, phase="forward", seq=20, message_bytes=BYTES)]
    assert found(collectives=[*sums(), *sent]) == []


def test_silent_if_values_are_exchanged_between_steps():
    """As gossip does: each rank averages with a neighbour after `session.step()`."""
    late = {"step": None, "issue_ns": 200 * MS, "start_ns": 200 * MS}
    sent = [collective(rank=0, op="send", root=1, phase="other", message_bytes=BYTES, **late)]
    assert found(collectives=[*sums(), *sent]) == []
    early = [replace(row, issue_ns=0, start_ns=0) for row in sent]
    begun = [step(0, rank, start_ns=1 * MS // 2) for rank in (0, 1)]
    assert len(found(collectives=[*sums(), *early], steps=begun)) == 1


def test_silent_over_stages_that_messages_join():
    """Ranks 0 and 2 exchange nothing, and are stages of one pipeline by way of rank 1."""
    ends = [Group("ends", (0, 2)), Group("pg", (0, 1, 2))]
    sent = [
        collective(rank=rank, op="send", root=rank + 1, phase="forward", group_size=3, message_bytes=BYTES)
        for rank in (0, 1)
    ]
    reduced = sums(ranks=(0, 2), group="ends")
    rows = held(ranks=(0, 1, 2))
    assert len(found(rows, reduced, ends, ranks=3)) == 1
    assert found(rows, [*reduced, *sent], ends, ranks=3) == []


def test_silent_if_collectives_are_not_on_record():
    missed = Count(0, 0, "pg", issued=4, recorded=3)
    assert found(counts=[missed]) == []
    assert len(found(counts=[replace(missed, recorded=4)])) == 1


def test_silent_if_nobody_reduces():
    """Local SGD before its first average, or micro-batches that only add up."""
    assert found(collectives=on_ranks((0, 1), phase="other", message_bytes=8)) == []


def test_silent_if_few_are_reduced():
    """As the norms that tensor-parallel ranks share, among layers of which each has its own part."""
    assert found(collectives=sums(LAYERS[:1])) == []


def test_silent_over_a_smaller_group_of_its_own():
    """Experts are reduced over the ranks that have the same ones."""
    pairs = [Group("pg", (0, 1, 2, 3)), Group("ep", (0, 1)), Group("ep", (2, 3))]
    own = [row for pair in ((0, 1), (2, 3)) for row in sums(LAYERS[3:], pair, group="ep", seq=9)]
    rows = held(ranks=range(4))
    dense = sums(ranks=range(4))
    assert len(found(rows, dense, pairs, ranks=4)) == 1
    assert found(rows, [*dense, *own], pairs, ranks=4) == []


def test_values_win():
    """Equal gradients on record show that something reduced it; different ones make the error by values."""
    checked = [replace(row, checked=True, has_grad=True) for row in held()]
    start = [value("parameter", name, rank, noise(1), step=None) for name in LAYERS for rank in (0, 1)]
    gradients = [value("gradient", name, rank, noise(2)) for name in REDUCED for rank in (0, 1)]
    equal = [value("gradient", "head.weight", rank, noise(3)) for rank in (0, 1)]
    apart = [value("gradient", "head.weight", rank, noise(4 + rank)) for rank in (0, 1)]
    assert found(checked, values=[*start, *gradients, *equal]) == []
    (one,) = found(checked, values=[*start, *gradients, *apart])
    assert (one.severity, one.where.parameter, one.where.source) == ("error", "head.weight", LINE)


def test_older_records_say_nothing_of_it():
    assert found(held(used_in=None, checked=None, has_grad=True)) == []
