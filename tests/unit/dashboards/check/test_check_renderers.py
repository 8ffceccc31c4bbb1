"""What is over budget as workflow commands, Markdown and lines: escaped, bounded, complete."""

from __future__ import annotations

import re

from shardtoll.dashboards.check import words
from shardtoll.dashboards.check.annotations import MOST, source_files, workflow_commands
from shardtoll.dashboards.check.check_shown import markdown
from shardtoll.ledger.answers.overrun import BudgetCheck, Call, Overrun
from tests.sample_reports import HOSTILE


def overrun(**given: object) -> Overrun:
    values: dict[str, object] = {
        "limit_name": "max_collectives", "place": None, "answer": "over", "limit": 1, "found": 2,
        "why": "2 collectives, 1 collective allowed", "step": 3, "rank": 1, "source": "job/train.py:7 (step)",
    } | given  # fmt: skip
    return Overrun(**values)  # type: ignore[arg-type]


def check(*overruns: Overrun, warnings: tuple[str, ...] = (), allowed: bool = False) -> BudgetCheck:
    return BudgetCheck("runs/a", "budget.toml", overruns, warnings, 1, 2, 4, allowed)


def call(**given: object) -> Call:
    values: dict[str, object] = dict.fromkeys(Call.__dataclass_fields__) | {
        "op": "all_gather", "count": 1, "group": "3", "phase": "forward"
    } | given  # fmt: skip
    return Call(**values)  # type: ignore[arg-type]


def decoded(command: str) -> tuple[str, dict[str, str], str]:
    """Read a command as GitHub's runner does (actions/runner, ActionCommand.cs)."""
    found = re.fullmatch(r"::(\w+) (.*?)::(.*)", command)
    assert found is not None
    properties = dict(pair.split("=", 1) for pair in found[2].split(","))

    def back(text: str) -> str:
        for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(escaped, char)
        return text

    return found[1], {name: back(value) for name, value in properties.items()}, back(found[3])


def test_a_command_reads_back_as_it_was_meant():
    odd = overrun(place='module "a, b: c::d\n100%"', source="di r,x/a:b%.py:12 (f)", why="50 %: a,b")
    kind, properties, text = decoded(workflow_commands(check(odd))[0])
    assert kind == "error"
    assert properties == {
        "file": "di r,x/a:b%.py",
        "line": "12",
        "title": 'over: max_collectives of module "a, b: c::d 100%"',
    }
    assert text == "50 %: a,b\nat di r,x/a:b%.py:12 (f), step 3, rank 1"


def test_hostile_names_neither_end_a_command_nor_begin_one():
    for name in HOSTILE.values():
        one = overrun(place=name, source=f"{name}:3", why=name, calls=(call(module=name, op=name),))
        (command, warning) = workflow_commands(check(one, warnings=(name,)))
        for line in (command, warning):
            assert len(line.splitlines()) == 1
            assert line.startswith(("::error ", "::warning "))
            assert line.isprintable()
            line.encode()
            assert len(line) < 20_000


def test_files_are_named_from_the_checkout_and_lines_without_a_number_are_left_out():
    found = check(overrun(), overrun(found=3, source="nowhere"), overrun(found=4, source=None))
    assert source_files(found) == {"job/train.py"}
    told = [
        decoded(line)[1].get("file")
        for line in workflow_commands(found, {"job/train.py": "src/job/train.py"})
    ]
    assert told == ["src/job/train.py", None, None]


def test_what_is_allowed_warns_and_there_are_no_more_than_github_shows():
    untold = overrun(answer="cannot be told")
    (command,) = workflow_commands(check(untold, allowed=True))
    assert command.startswith("::warning ")
    lines = [overrun(found=2 + at, source=f"job/train.py:{at + 1}") for at in range(80)]
    many = workflow_commands(check(*lines, warnings=("w",)))
    assert len(many) == MOST
    assert "and 32 more" in many[-1]


def test_limits_that_tell_the_same_excess_are_one_annotation_at_the_line_they_share():
    """An explicit gather added at line 7: the step, its group and its phase are all over by one."""
    new = call(source="job/train.py:7 (step)", phase="forward")
    reduce = call(op="all_reduce", count=5, source="job/train.py:30 (step)", phase="backward")
    other = call(op="all_reduce", count=2, source="job/train.py:9 (step)", phase="forward", implicit=True)
    whole = overrun(found=9, limit=8, source="job/train.py:30 (step)", calls=(reduce, other, new))
    group = overrun(found=6, limit=5, place='mesh dim "dp"', source="job/train.py:30 (step)",
                    calls=(reduce, new))  # fmt: skip
    phase = overrun(found=3, limit=2, place='phase "forward"', source="job/train.py:9 (step)",
                    calls=(other, new))  # fmt: skip
    (command,) = workflow_commands(check(whole, group, phase))
    kind, properties, text = decoded(command)
    assert (kind, properties["line"]) == ("error", "7")
    assert properties["title"] == "over: max_collectives and 2 more"
    assert 'also over: max_collectives of mesh dim "dp"' in text
    assert 'also over: max_collectives of phase "forward"' in text
    # By another amount it is another excess.
    assert len(workflow_commands(check(group, overrun(found=99, calls=(other,))))) == 3


def test_each_line_that_may_be_the_new_one_is_marked_implicit_ones_first():
    costly = call(op="all_reduce", source="job/train.py:30 (step)")
    hidden = call(source="job/model.py:7 (forward)", implicit=True)
    same = call(op="all_gather", source="job/train.py:30 (step)", phase="backward")
    told = [decoded(line) for line in workflow_commands(check(overrun(calls=(costly, hidden, same))))]
    assert [(at["file"], at["line"]) for _, at, _ in told] == [("job/model.py", "7"), ("job/train.py", "30")]
    assert all("one of 2 lines that may be the cause" in text for _, _, text in told)
    # Two limits at one line are one annotation; what is certain there is not called one of several.
    sure = overrun(limit_name="no_implicit", place="head", found=1, limit=0, calls=(hidden,),
                   source="job/model.py:7 (forward)")  # fmt: skip
    both = [decoded(line) for line in workflow_commands(check(overrun(calls=(costly, hidden)), sure))]
    assert len(both) == 2
    assert 'also over: no_implicit "head"' in both[0][2]
    assert "one of" not in both[0][2]


def test_markdown_shows_names_as_text():
    hostile = markdown(check(overrun(why="<b>x</b> | `y` *z* [l](u)", calls=(call(module="<i>"),))))
    assert "<b>" not in hostile
    assert "<i>" not in hostile
    (row,) = [line for line in hostile.splitlines() if line.startswith("| over")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


def test_lines_tell_all_that_is_known():
    one = overrun(
        limit_name="no_implicit",
        place="layers.*",
        calls=(call(parameter="w", implicit=True), call(placements_from="(S,)", mesh_dim="tp", module="")),
        calls_left_out=3,
    )
    text = "\n".join(words.lines(check(one, warnings=("renamed?",))))
    assert text == (
        "1 over budget: 1 limit on 2 steps of 4 ranks\n"
        '  over: no_implicit "layers.*": 2 collectives, 1 collective allowed\n'
        "      at job/train.py:7 (step), step 3, rank 1\n"
        "      1 all_gather · unknown sent · on group 3 · forward · implicit · parameter w\n"
        "      1 all_gather · unknown sent · on mesh dim tp · forward · module (root) · (S,) -> ?\n"
        "      and 3 causes more\n"
        "  warning: renamed?"
    )
    assert len(words.lines(check(*[overrun()] * 1000))) < 500
    assert words.headline(check()) == "within budget: 1 limit on 2 steps of 4 ranks"
    assert "1 unknown, allowed" in words.headline(check(overrun(answer="cannot be told"), allowed=True))


def test_collectives_that_several_limits_count_are_listed_once():
    layers = tuple(
        call(
            op="all_reduce", wire_bytes=10, module=f"layers.{n}.{name}", parameter=f"layers.{n}.{name}.weight"
        )
        for n in (0, 1)
        for name in ("wq", "wo")
    )
    other = call(op="broadcast", wire_bytes=None, module="head")
    limits = ("max_collectives", "max_wire_bytes")
    both = [overrun(limit_name=name, calls=(*layers, other), calls_left_out=2) for name in limits]
    longer = overrun(limit_name="max_exposed", calls=(*layers, other), calls_left_out=3)
    made = check(*both, longer)
    (_, first), (_, second), (_, third) = words.shown_parts(made)
    assert first == [
        "4 all_reduces · 40 B sent · on group 3 · forward · module layers.{0-1}.{wq,wo} · "
        "parameter layers.{0-1}.{wq,wo}.weight",
        "1 broadcast · unknown sent · on group 3 · forward · module head",
        "and 2 causes more",
    ]
    assert second == ["the same collectives as for max_collectives"]
    assert third == [*first[:-1], "and 3 causes more"], "others may be among those left out"
    for text in (markdown(made), "\n".join(words.lines(made))):
        assert text.replace("\\", "").count("4 all_reduces") == 2
        assert "the same collectives as for" in text
