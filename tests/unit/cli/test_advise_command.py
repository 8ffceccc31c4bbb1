"""`shardtoll advise` from its arguments to its files, and the worked cases of its page."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.advice_cases import CASES, PAGE, advice_of, section
from shardtoll.cli import app
from shardtoll.ledger import UsageError

RUN = CliRunner()
PLAN = """
gpu = "h100-sxm"
sequence = 1024
[model]
layers = 4
hidden = 512
heads = 8
kv_heads = 8
ffn = 2048
vocab = 32000
name = "<b>small</b>"
[current]
dp = 4
tp = 2
micro_batch = 2
accumulation = 8
"""


def test_a_plan_file_gives_page_json_and_markdown(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    files = [tmp_path / f"advice.{ending}" for ending in ("html", "json", "md")]
    asked = ["advise", str(plan), "--price", "2.5/gpu-hour", "--width", "100"]
    done = RUN.invoke(app("advise"), [*asked, *(word for file in files for word in ("-o", str(file)))])
    assert done.exit_code == 0, done.output
    assert "Use DDP 8" in done.output
    assert "Your layout" in done.output
    assert "tokens per unit of currency" in files[2].read_text()
    assert "--recovery-seconds" in done.output
    told = json.loads(files[1].read_text())
    assert told["question"]["current"]["tp"] == 2
    assert told["scaling"][0]["tokens_per_currency"] > 0
    page = files[0].read_text()
    assert "trade-figure" in page
    assert "<script>alert" not in page
    assert "What decided" in files[2].read_text()


def test_a_layout_that_is_only_asked_about_has_its_own_name(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    page = tmp_path / "advice.html"
    asked = ["advise", str(plan), "--width", "200", "-o", str(page), "--explain"]
    other = RUN.invoke(app("advise"), [*asked, "dp=8,sharding=fsdp,micro_batch=1,accumulation=8"])
    assert other.exit_code == 0, other.output
    name = "FSDP 8, micro-batch 1 x 8"
    assert f"{name} takes" in other.output
    assert f"\n{name} against the advised layout\n" in other.output
    assert "Your layout" not in other.output
    assert "asked about" in page.read_text()
    # The layout in use is yours, whoever asks.
    own = RUN.invoke(app("advise"), [*asked, "dp=4,tp=2,micro_batch=2,accumulation=8,sequence_parallel=no"])
    assert own.exit_code == 0, own.output
    assert "Your layout" in own.output
    assert "against the advised layout" not in own.output


def test_another_batch_than_the_plans_says_what_it_means_and_no_price_says_what_to_give(
    tmp_path: Path,
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    asked = ["advise", str(plan), "--batch-tokens", str(4 * 64 * 1024), "--recovery-seconds", "90"]
    done = RUN.invoke(app("advise"), [*asked, "--width", "400"])
    assert done.exit_code == 0, done.output
    assert "The batch changes from 65,536 to 262,144 tokens" in done.output
    assert "Give --price to see tokens per unit of currency." in done.output
    assert "90.0 s of recovery (given)" in done.output
    assert "unknown" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama3-8b"], "gpus is missing"),
        (["--model", "llama3-8b", "--gpus", "8", "--gpu", "abacus"], "no GPU named 'abacus'"),
        (["--model", "llama3-8b", "--gpus", "8", "--max-memory", "much"], "is no share of memory"),
        (["--model", "llama3-8b", "--gpus", "8", "--explain", "tp=3"], "GPUs, not 8"),
        (["--model", "llama3-8b", "--gpus", "8", "--price", "0"], "--price 0 is no finite number above 0"),
        (["--model", "llama3-8b", "--gpus", "8", "--price", "2 euros"], "--price '2 euros': give a number"),
        (
            ["--model", "llama3-8", "--gpus", "8"],
            "unknown model 'llama3-8': name one as llama-3-8b, llama-3-70b",
        ),
        (["--model", "zzz", "--gpus", "8"], "unknown model 'zzz': name one as llama3-8b, or give its shape"),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--gpu", "a100"],
            "no GPU named 'a100': name one that `shardtoll"
            " gpus` lists, as a100-pcie-40gb, a100-pcie-80gb, a100-sxm-40gb, a100-sxm-80gb",
        ),
        (["--model", "llama3-8b", "--gpus", "8", "--failures-per-day", "0"], "--failures-per-day 0 is no"),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--checkpoint-seconds", "nan"],
            "--checkpoint-seconds nan is",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--checkpoint-seconds", "0"],
            "--checkpoint-seconds 0 is no",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--recovery-seconds", "inf"],
            "--recovery-seconds inf is no",
        ),
        (["missing.toml"], "cannot read missing.toml"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    done = RUN.invoke(app("advise"), ["advise", *arguments])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_more_work_of_the_same_layout_is_never_as_fast() -> None:
    """Its band overlaps the best one's, but what makes the band wide is the same in both."""

    def gap(explained: str) -> str:
        words = ["advise", "--model", "llama3.2-1b", "--gpus", "8", "--explain", explained]
        said = " ".join(RUN.invoke(app("advise"), words).output.split())
        return said[said.index("It takes") :][:150]

    assert "The bands overlap" not in gap("checkpointing=full")
    assert "The bands overlap: it may be as fast." in gap("sharding=fsdp")


def test_the_page_has_a_worked_case_for_each_size() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(CASES) == 10
    for case in CASES:
        assert f"--model {case.model} --gpus {case.gpus} --gpu {case.gpu} " in page
    assert page.count("**Use ") == 10, "run python docs/advice_cases.py"


def test_the_first_case_of_the_page_is_what_the_command_says_today() -> None:
    # The nine others take longer: `python docs/advice_cases.py --check` compares all.
    page = PAGE.read_text(encoding="utf-8")
    assert section(CASES[0], advice_of(CASES[0])) in page, "run python docs/advice_cases.py"


def test_what_fits_nowhere_has_no_cost_of_checkpoints(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    words = ["advise", "--model", "llama3-405b", "--gpus", "8", "--failures-per-day", "2", "-o", str(page)]
    ran = RUN.invoke(app("advise"), words)
    assert ran.exit_code == 0, ran.output
    shown = " ".join(ran.output.split())
    assert "No layout of 8 GPUs fits in 84.9 GB" in shown
    for text in (shown, page.read_text()):
        assert "Failure rate" not in text
        assert "goodput" not in text
