"""The pages of findings: writes the index of them, and the examples on them from real bills.

    python docs/finding_pages.py                    writes docs/findings.md from the pages' first lines
    python docs/finding_pages.py --examples out     runs what the examples come from, in out/, and writes them

An example is a part of a page that begins with a comment, `<!-- example: ... -->`, and ends with a block of
text. The comment says where the bill comes from:

    job OPTIONS               benchmarks/synthetic_job.py with these options, the same bytes every time
    incident NAME [fixed]     shardtoll demo --incidents --only NAME
    sample MODULE OPTIONS     torchrun -m shardtoll.samples.MODULE with these options

and, after a bar, which finding of it, if not the first of the page's kind: words that its lines hold.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardtoll.ledger import KINDS

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent
PAGES: Final = DOCS / "findings"
INDEX: Final = DOCS / "findings.md"

HEADINGS: Final = (
    "Why it happens",
    "How it is measured",
    "When it is wrong or silent",
    "How to confirm it",
    "How to fix it",
    "What it looks like",
)
FACTS: Final = ("severity", "toll", "saving", "needs", "code")
"""Rows of the table at the top of each page."""

FAMILIES: Final = {
    "correctness": "Results are wrong: these come first on the bill, and cost no time of their own",
    "communication": "Communication",
    "compute": "Compute",
    "schedule": "Idle devices: data, the host, copies, pipelines",
    "trust": "What the report does not know",
}

WIDTH: Final = 100
_EXAMPLE: Final = re.compile(r"<!-- example: (.*?) -->\n.*?^```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
_HEAD: Final = re.compile(r"^ ?\d+ (?:error|warning|info) ([a-z-]+)(?: \([^()]*\))?$")


@dataclass(frozen=True, slots=True)
class Page:
    """One page, in the parts that the index and the tests look at."""

    kind: str
    text: str

    @property
    def summary(self) -> str:
        """The paragraph under the title, on one line."""
        return " ".join(self.text.split("\n\n")[1].split())

    @property
    def facts(self) -> dict[str, str]:
        """The table at the top."""
        top = self.text.partition("\n## ")[0]
        return dict(re.findall(r"^\| (\w+) \| (.+) \|$", top, flags=re.MULTILINE))

    @property
    def limits(self) -> list[tuple[str, str, str]]:
        """(module of the analyzers, name, value) of each row that quotes a limit of the code."""
        return re.findall(r"^\| `([\w/]+)\.([A-Z_]+)` \| ([^|]+?) \|", self.text, flags=re.MULTILINE)

    @property
    def labels(self) -> list[str]:
        """Labels of evidence that the page speaks of."""
        found = re.findall(r"^Evidence: ((?:.+\n)+)", self.text, flags=re.MULTILINE)
        return [label for part in found for label in re.findall(r"`([^`]+)`", " ".join(part.split()))]

    @property
    def headings(self) -> list[str]:
        """Its headings of the second level."""
        return re.findall(r"^## (.+)$", self.text, flags=re.MULTILINE)

    @property
    def examples(self) -> list[str]:
        """Where its examples come from."""
        return _EXAMPLE.findall(self.text)


def pages() -> dict[str, Page]:
    """Return the pages by kind, in the order of the closed list."""
    found = {path.stem: Page(path.stem, path.read_text(encoding="utf-8")) for path in PAGES.glob("*.md")}
    return {kind: found[kind] for kind in (*KINDS, *sorted(set(found) - set(KINDS))) if kind in found}


def index() -> str:
    """Return the text of docs/findings.md."""
    known = pages()
    parts = [_INTRODUCTION]
    for family, title in FAMILIES.items():
        parts += [f"## {title}\n", "| kind | what it says | severity | toll |", "|---|---|---|---|"]
        for kind, page in known.items():
            if KINDS.get(kind) == family:
                facts = page.facts
                parts.append(
                    f"| [`{kind}`](findings/{kind}.md) | {page.summary} | {facts.get('severity')} | "
                    f"{facts.get('toll')} |"
                )
        parts.append("")
    return "\n".join(parts)


_INTRODUCTION: Final = """\
<!-- Written by docs/finding_pages.py from the pages in docs/findings: change those. -->
# What shardtoll finds

Each kind of finding has a page: what it means, how it is measured and fixed, when it is wrong or silent.
Each page has a real example. The kinds are a closed list: a report holds no other.

- **error**: results are wrong, or the report cannot be trusted. **warning**: time is lost. **info**: a choice
  worth knowing.
- **toll** is what a finding costs per step, on the rank where it costs most.
- **floor** is the least time for what is really needed. At most one of twenty sound runs on this fabric is
  faster.
- **saving** is an upper bound against a stated counterfactual, and never above the toll. Tolls of different
  findings may speak of the same time and do not add up.
- **certain** rests on recorded facts alone. **likely** assumes something that is nearly always so, and the
  page says it. **possible** is a hint.

A finding's number is its place on the bill; the page and the dashboard link to it as `#finding-1`.
"""


# -- examples ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Where an example comes from."""

    made: tuple[str, ...]
    """The commands that make the run or the traces, in words to be split."""
    shown: str
    """The command that prints the bill."""


def source(told: str) -> Source:
    """Return the commands behind an example's comment; folders are below out/."""
    what, *rest = shlex.split(told.partition("|")[0])
    if what == "job":
        made = shlex.join(["python", "benchmarks/synthetic_job.py", "out/job", *rest])
        return Source((made,), "shardtoll report out/job --all")
    if what == "incident":
        name, *variant = rest
        fabric = " --fabric h100x8-ib400" if name == "tp_across_nodes" else ""
        return Source(
            (f"shardtoll demo --incidents --only {name}",),
            f"shardtoll report out/incidents/{name}/{'fixed' if variant else 'bad'}{fabric} --all",
        )
    module, *options = rest
    # A sample that has several programs is told which one by a word.
    folder = "-".join((f"out/{module.replace('.', '-')}", *(each for each in options[:1] if each.isalpha())))
    command = ["torchrun", "--nproc-per-node", "2", "-m", f"shardtoll.samples.{module}"]
    return Source((shlex.join([*command, *options, "--out", folder]),), f"shardtoll report {folder} --all")


def bill(told: str, folder: Path) -> str:
    """Run what an example comes from with `folder` for out/, and return the bill that is printed."""
    by = source(told)
    folder = folder / (re.sub(r"\W+", "-", told) if told.startswith("job ") else "")
    folder.mkdir(parents=True, exist_ok=True)
    for command in by.made:
        _run(command, folder)
    return _run(by.shown, folder)


def _run(command: str, folder: Path) -> str:
    words = [_inside(word, folder) for word in shlex.split(command)]
    shardtoll = [sys.executable, "-c", "from shardtoll.cli import main; main()"]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    words[:1] = {"python": [sys.executable], "shardtoll": shardtoll, "torchrun": torchrun}[words[0]]
    if "report" in words:
        words += ["--width", str(WIDTH), *(["--no-cache"] if "job" in command else [])]
    if "--incidents" in words:
        words += ["--out", str(folder / "incidents")]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    # A job that hangs ends with an error.
    if ran.returncode and not (words[1:3] == ["-m", "torch.distributed.run"] and "hangs" in command):
        raise SystemExit(f"{command}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def _inside(word: str, folder: Path) -> str:
    return str(folder / word.removeprefix("out/")) if word.startswith("out/") else word


def entry(printed: str, kind: str, told: str) -> str:
    """Return the lines of the bill that speak of the first finding of a kind that holds the words wanted."""
    words = " ".join(told.partition("|")[2].split())
    lines = printed.split("\n")
    for at, line in enumerate(lines):
        head = _HEAD.match(line)
        if head is None or head.group(1) != kind:
            continue
        # The last lines of a finding are its remedy; what follows it, or the next one, begins at the margin.
        end = next(
            (after for after in range(at + 1, len(lines)) if re.match(r" ?\d+ \w|\S", lines[after])),
            len(lines),
        )
        found = "\n".join(each.rstrip() for each in lines[at:end]).rstrip()
        if words in " ".join(found.split()):
            return found
    raise SystemExit(f"no {kind} with {words!r} on the bill of {told!r}")


def with_example(text: str, told: str, found: str) -> str:
    """Return a page's text with this example in its place."""
    by = source(told)
    commands = "\n".join(f"$ {command}" for command in (*by.made, by.shown))
    block = f"<!-- example: {told} -->\n```console\n{commands}\n```\n\n```text\n{found}\n```\n"
    return _EXAMPLE.sub(lambda match: block if match.group(1) == told else match.group(0), text)


def renew_examples(folder: Path) -> None:
    """Run every example and write it into its page."""
    printed: dict[str, str] = {}
    for kind, page in pages().items():
        text = page.text
        for told in page.examples:
            made = told.partition("|")[0].strip()
            if made not in printed:
                print(f"{kind}: {made}", flush=True)
                printed[made] = bill(made, folder)
            text = with_example(text, told, entry(printed[made], kind, told))
        (PAGES / f"{kind}.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the index, and the examples where they are asked for."""
    parser = argparse.ArgumentParser(description="writes docs/findings.md, and the examples on its pages")
    parser.add_argument("--examples", metavar="FOLDER", type=Path, help="run the examples in FOLDER first")
    asked = parser.parse_args()
    if asked.examples is not None:
        renew_examples(asked.examples.resolve())
    INDEX.write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
