"""`shardtoll advise` of a run and of a script: what it says, what it confirms, and its mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from shardtoll.analyzers.advise import advise as advising
from shardtoll.analyzers.advise.advise import Beside
from shardtoll.analyzers.advise.from_run import measured, run_question
from shardtoll.analyzers.advise.from_run.run_question import Derived
from shardtoll.analyzers.forecast.plan import Network
from shardtoll.cli import app
from shardtoll.cli.jobs import advise_job, confirming
from shardtoll.cli.jobs.advise_job import question_values
from shardtoll.cli.jobs.confirming import Template, confirmed
from shardtoll.dashboards.advise.advice_rows import lines
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.advice import Advice, Question
from shardtoll.ledger.answers.training_plan import Layout

ROOT = Path(__file__).parents[3]
LAYOUT = {"dp": 4, "tp": 2, "pp": 1, "cp": 1, "micro_batch": 2, "accumulation": 4}
VALUES = {"model": {"layers": 2}, "current": LAYOUT, "sequence": 128, "fabric": "h100x8-ib400"}
RAN = Derived({**VALUES, "gpu": "h100-sxm", "gpus_per_node": 8}, ("read",), 1e9)


def test_a_run_on_as_many_gpus_keeps_its_layout_and_batch() -> None:
    values, notes = question_values(RAN, {})
    assert (values["gpus"], values["current"], values["fabric"]) == (8, LAYOUT, "h100x8-ib400")
    assert "batch_tokens" not in values
    assert notes == ["read"]


def test_on_other_gpus_the_batch_stays_and_the_layout_goes() -> None:
    values, notes = question_values(RAN, {"gpus": 64})
    assert "current" not in values
    assert (values["gpus"], values["batch_tokens"]) == (64, str(4 * 2 * 4 * 128))
    assert "The run had 8 GPUs: its layout is not among those of 64" in notes[-1]
    alone = {**VALUES, "current": {**LAYOUT, "dp": 1, "tp": 1}}
    _, notes = question_values(Derived(alone, (), 1e9), {"gpus": 64, "gpu": "h100-sxm"})
    assert "The run had 1 GPU: " in notes[-1]


def test_another_gpu_has_another_fabric() -> None:
    values, _ = question_values(RAN, {"gpu": "a100-sxm-80gb"})
    assert values["gpu"] == "a100-sxm-80gb"
    assert not {"fabric", "gpus_per_node"} & set(values)


def test_a_run_on_no_known_gpu_asks_for_one() -> None:
    with pytest.raises(UsageError, match="the run was on no known GPU"):
        question_values(Derived(dict(VALUES), (), None), {})


@pytest.mark.parametrize("source", ["live", "dry"])
def test_a_runs_step_scales_a_layout_that_is_asked_about_too(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    shape = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 32000}
    read = replace(RAN, values={**RAN.values, "model": shape}, step_ns=150e6, lost_ns=50e6)
    report = SimpleNamespace(run=SimpleNamespace(source=source))
    monkeypatch.setattr(advise_job, "values_of_run", lambda _: (read, report))
    monkeypatch.setattr(measured, "measured_beside", lambda *_: {})
    given: list[Beside] = []

    def advise(question: Question, network: Network | None = None, beside: Beside | None = None) -> Advice:
        given.append(beside or Beside())
        return price(question, network, beside)

    price = advising.advise
    monkeypatch.setattr(advising, "advise", advise)
    for options in ({}, {"precision": "fp8"}):
        stands, asked, same = (
            advise_job.advised("run", "a", [], dict(options), {}, explain, None)
            for explain in (None, "tp=4,micro_batch=2", "tp=2,micro_batch=2")
        )
        assert stands.current is not None
        assert asked.current is not None
        assert same.current is not None
        assert asked.current.layout.tp == 4
        assert stands.scale == asked.scale == same.scale
        assert asked.recorded_forecast_ns == stands.recorded_forecast_ns
        if options:
            assert (stands.scale, stands.recorded_step_ns, stands.recorded_lost_ns) == (1, None, 0)
        else:
            # The step without what no layout changes.
            assert stands.current.step_ns.expected == pytest.approx(100e6)
            assert stands.recorded_step_ns == asked.recorded_step_ns == 150e6
            # A dry run measures nothing.
            start = "The dry run forecasts a step of" if source == "dry" else "The run's step takes"
            assert next(lines(stands)).startswith(f"{start} 150 ms. ")
    assert [each.ran for each in given] == [source == "live", False, False, False, False, False]
    assert [each.keeps_current for each in given] == [True, False, False] * 2


def test_layouts_are_confirmed_only_if_the_script_ran_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    wanted = Layout(dp=4, tp=2, micro_batch=2)
    other = replace(wanted, micro_batch=4)
    broken = replace(wanted, micro_batch=8)
    given: list[list[str]] = []

    def dry(_: object, arguments: list[str], __: object) -> SimpleNamespace:
        given.append(arguments)
        if arguments[-1] == "8":
            raise UsageError("it fails", "mend it")
        return SimpleNamespace(steps=pd.DataFrame({"duration_ns": [5.0, 7.0, 6.0]}))

    monkeypatch.setattr(confirming, "dry_report", dry)
    monkeypatch.setattr(run_question, "derive", lambda *_: SimpleNamespace(values={}))
    monkeypatch.setattr(run_question, "layout_of_values", lambda _: wanted)
    band = SimpleNamespace(expected=4.0)
    ties = [
        SimpleNamespace(layout=each, words=str(each.micro_batch), step_ns=band)
        for each in (wanted, other, broken)
    ]
    made = confirmed(
        SimpleNamespace(ties=ties),  # type: ignore[arg-type]
        tmp_path / "a.py",
        ["--x"],
        Template.read("--tp {tp} --batch {micro_batch}"),
        {},
    )
    assert given == [["--x", "--tp", "2", "--batch", each] for each in ("2", "4", "8")]
    assert [each.same for each in made] == [True, False, False]
    assert [each.dry_ns for each in made] == [6.0, 6.0, None]
    assert made[2].ran == "nothing: it fails"
    with pytest.raises(UsageError, match="--confirm: unknown name 'tensor'"):
        Template.read("--tp {tensor}")


def test_a_layout_that_cannot_be_read_or_priced_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    wanted = Layout(dp=4, tp=2, micro_batch=2)
    unpriced, unread = replace(wanted, micro_batch=4), replace(wanted, micro_batch=8)

    def dry(_: object, arguments: list[str], __: object) -> SimpleNamespace:
        times = [] if arguments[-1] == "4" else [5.0]
        return SimpleNamespace(batch=arguments[-1], steps=pd.DataFrame({"duration_ns": times}))

    def read(report: SimpleNamespace, _: str) -> SimpleNamespace:
        if report.batch == "8":
            raise UsageError("no step says its model", "give --model")
        return SimpleNamespace(values=replace(wanted, micro_batch=int(report.batch)))

    monkeypatch.setattr(confirming, "dry_report", dry)
    monkeypatch.setattr(run_question, "derive", read)
    monkeypatch.setattr(run_question, "layout_of_values", lambda values: values)
    ties = [
        SimpleNamespace(layout=each, words=str(each.micro_batch), step_ns=SimpleNamespace(expected=4.0))
        for each in (unread, unpriced, wanted)
    ]
    template = Template.read("--batch {micro_batch}")
    made = confirmed(SimpleNamespace(ties=ties), tmp_path / "a.py", [], template, {})  # type: ignore[arg-type]
    assert made[0].ran == "nothing: no step says its model"
    assert [each.same for each in made] == [False, True, True]
    assert [each.dry_ns for each in made] == [None, None, 5.0]


@pytest.mark.parametrize(
    "template",
    [
        *("--tp {tp", "tp}", "'--tp {tp}", "{}", "{one}", "{tp.real}", "{tp[0]}"),
        *("{tp:9}", "{tp!r}", "{tp:{dp}}", "{tp:{foo}}", "{tp:1000000000}"),
    ],
)
def test_a_template_is_read_before_anything_runs(
    template: str, shardtoll: Callable[..., Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit")
    ran = shardtoll("advise", script, "--confirm", template)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("shardtoll: --confirm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.toml", "--", "--lr"], "unexpected argument '--lr'"),
        (["runs/a", "--confirm", "--tp {tp}"], "--confirm needs a script"),
        (["missing.py", "--gpus", "2"], "there is no script missing.py"),
    ],
)
def test_what_only_a_script_takes(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app("advise"), ["advise", *arguments])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_a_dry_run_says_its_model_and_layout(tmp_path: Path) -> None:
    script = ROOT / "samples/dryrun/llama.py"
    sizes = ["--model", "tiny", "--length", "256", "--batch", "4"]
    command = [sys.executable, "-m", "shardtoll.cli", "dryrun", "--world", "4", "--gpu", "h100-sxm"]
    fabric = ["--fabric", "h100x8-ib400", "--out", str(tmp_path / "run")]
    subprocess.run([*command, *fabric, str(script), *sizes], check=True, capture_output=True, timeout=180)
    done = CliRunner().invoke(app("advise"), ["advise", str(tmp_path / "run"), "--gpu", "h100-sxm", "--json"])
    said = json.loads(done.stdout)
    assert done.exit_code == 0
    assert said["current"]["layout"]["dp"] == 4
    assert said["question"]["sequence"] == 256
