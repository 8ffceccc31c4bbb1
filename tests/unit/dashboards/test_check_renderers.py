"""What is over budget as workflow commands, Markdown and lines: escaped, bounded, complete."""

from __future__ import annotations

import re

from shardtoll.dashboards import check_words as words
from shardtoll.dashboards.check_annotations import MOST, source_files, workflow_commands
from shardtoll.dashboards.check_file import markdown
from shardtoll.ledger.overrun import BudgetCheck, Call, Overrun
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
    found = check(overrun(), overrun(source="nowhere"), overrun(source=None))
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
    many = workflow_commands(check(*[overrun()] * 80, warnings=("w",)))
    assert len(many) == MOST
    assert "and 32 more" in many[-1]


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
    assert "1 cannot be told, allowed" in words.headline(
        check(overrun(answer="cannot be told"), allowed=True)
    )
