"""Writes the worked cases of docs/advise.md: `python docs/advice_cases.py`; `--check` compares them."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from shardtoll.analyzers.advise.advise import advise
from shardtoll.analyzers.advise.question_file import question_of
from shardtoll.ledger.answers.advice import Advice
from shardtoll.ledger.words import human

PAGE: Final = Path(__file__).resolve().parent / "advise.md"
BEGIN, END = "<!-- cases: begin -->", "<!-- cases: end -->"


class Case(NamedTuple):
    """One question by its options."""

    model: str
    gpus: int
    gpu: str
    sequence: int
    batch_tokens: str


CASES: Final = (
    Case("gpt3-126m", 8, "a100-sxm-80gb", 2048, "512k"),
    Case("llama3.2-1b", 8, "h100-sxm", 8192, "1M"),
    Case("llama2-7b", 8, "a100-sxm-80gb", 4096, "1M"),
    Case("llama3-8b", 64, "h100-sxm", 8192, "4M"),
    Case("llama2-13b", 32, "a100-sxm-40gb", 4096, "2M"),
    Case("mixtral-8x7b", 64, "h100-sxm", 4096, "4M"),
    Case("llama3-70b", 64, "h100-sxm", 8192, "4M"),
    Case("llama3-70b", 256, "b200-sxm", 8192, "8M"),
    Case("gpt3-175b", 512, "a100-sxm-80gb", 2048, "4M"),
    Case("llama3-405b", 2048, "h100-sxm", 8192, "16M"),
)


def advice_of(case: Case) -> Advice:
    """The advice on a case."""
    return advise(question_of(case._asdict(), "case"))


def section(case: Case, advice: Advice) -> str:
    """The case as Markdown: command, answer, what decided."""
    command = (
        f"shardtoll advise --model {case.model} --gpus {case.gpus} --gpu {case.gpu} "
        f"--sequence {case.sequence} --batch-tokens {case.batch_tokens}"
    )
    lines = [
        f"### {case.model} on {case.gpus:,} GPUs ({case.gpu})",
        "",
        "```console",
        f"$ {command}",
        "```",
        "",
    ]
    lines += [f"**{advice.headline}**", ""]
    lines += [f"- {each.question} {each.number}. {each.answer}" for each in advice.path]
    failures = advice.failures
    if failures is not None:
        lines.append(
            f"- Checkpoint every {failures.interval_s / 60:,.0f} minutes "
            f"({human.size(failures.checkpoint_bytes)} each): goodput {100 * failures.goodput:.1f} %."
        )
    return "\n".join(lines) + "\n"


def cases() -> str:
    """All cases, with their times on stderr."""
    made = []
    for case in CASES:
        started = time.monotonic()
        made.append(section(case, advice_of(case)))
        print(f"{case.model} on {case.gpus}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    return "\n".join(made)


def renewed(page: str) -> str:
    """The page with its cases as they are today."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{cases()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Renew the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is old")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text(encoding="utf-8")
    made = renewed(page)
    if check:
        old = [line for line in made.splitlines() if line not in set(page.splitlines())]
        for line in old:
            print(f"now: {line}", file=sys.stderr)
        if made != page:
            print(f"{PAGE.name} is old: run python docs/advice_cases.py", file=sys.stderr)
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
