"""Measures how plainly shardtoll speaks: lengths of sentences and ruled-out words in texts, docs, comments.

`python docs/voice.py [ROOT]` prints the figures of a checkout; `--list` prints each ruled-out word with its
place, `--long N` the N longest sentences. `tests/test_voice.py` holds all
three kinds of text to zero ruled-out words.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = ("analyzers", "cli", "dashboards", "ledger", "profiler")
"""Folders whose string constants people read."""
DOCS: Final = ("README.md", "CONTRIBUTING.md", "docs")
LONG: Final = 22
"""Words from which on a sentence is too long."""
LONGEST: Final = 30
"""Words from which on a sentence of a docstring or comment has to be cut in two."""
LEAST_WORDS: Final = 4
"""Shorter strings are names, labels or keys."""
LABEL: Final = 6
"""Words up to which a string without a full stop may be a title."""

RULED_OUT: Final[dict[str, tuple[str, str]]] = {
    "dear": (r"\bdear(er|est|ly)?\b", "expensive"),
    "mend": (r"\bmend(s|ed|ing)?\b", "fix"),
    "told": (r"\btold\b", "known, shown"),
    "leaves with": (r"\bleaves? with \d", "exits with"),
    "beside": (r"\bbesides?\b", "next to, also"),
    "midst": (r"\bmidst\b", "during"),
    "alike": (r"\balike\b", "identical, both"),
    "lacks": (r"\black(s|ed|ing)?\b", "is missing, has no"),
    "already sent": (r"\balready sent\b", "repeated"),
    "is the matter": (r"\b(is|are) the matter\b", "name what costs time"),
    "sought": (r"\bsought\b", "searched"),
    "amid": (r"\bamids?t?\b", "during"),
    "whereof": (r"\b(whereof|thereof|therein|hereby|whereas|thereby|wherein|hitherto)\b", "a new sentence"),
    "for want of": (r"\bfor want of\b", "because there is no"),
    "save for": (r"\bsave for\b", "except"),
    "per step": (
        r"(\b(ms|µs|us|ns|s|bytes|[kMG]B|FLOP|times|once|twice|more)|[\d}…]) a (step|rank)\b",
        "per step",
    ),
    "of which it is": (r"\bof which (it|nothing|no|none)\b", "two sentences"),
    "where for if": (r"\b(None|null|only|warning|info|silent|unknown|error|nothing|empty) where\b", "if"),
    "nothing is said": (r"\bnothing is (said|told|claimed)\b", "no finding, unknown"),
    "no part of": (r"\bno part of\b", "excluded"),
    "negated relative clause": (
        r"\b(of|for|to|from|in|with|on|by) (which|whom|whose)\b[^.;:,]{0,60}?"
        r"\b(not|no|none|never|cannot|nothing|nobody)\b",
        "two sentences",
    ),
    "begins with Of": (r"^Of\b", "subject first"),
    "begins with What": (r"^What\b(?!.*\?$)", "subject first"),
    "begins with That": (r"^That\b", "name the noun"),
    "begins with Where": (r"^Where\b(?!.*\?$)", "if"),
}
"""Name -> (pattern over one sentence, what to write instead)."""
_RULES: Final = {
    name: re.compile(pattern, 0 if name.startswith("begins") else re.IGNORECASE)
    for name, (pattern, _) in RULED_OUT.items()
}
_END: Final = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`A-Z0-9…])")
_MARK: Final = re.compile(r"#\s*(noqa|type:|fmt:|ruff:|!)")
"""Comments that tools read."""
_WORD: Final = re.compile(r"[A-Za-z0-9_'’\-–.…]*[A-Za-z…][A-Za-z0-9_'’\-–.…]*|\d+")


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence and where it stands."""

    place: str
    sentence: str
    heading: bool = False

    @property
    def words(self) -> int:
        """Number of words."""
        return len(_WORD.findall(self.sentence))


@dataclass(frozen=True, slots=True)
class Hit:
    """A ruled-out word in a sentence."""

    rule: str
    text: Text


def sentences(place: str, text: str) -> Iterator[Text]:
    """Return the sentences of a paragraph."""
    for sentence in _END.split(" ".join(text.split())):
        if sentence.strip():
            yield Text(place, sentence.strip())


def hits(texts: Iterable[Text]) -> list[Hit]:
    """Return what is ruled out; headings may begin as questions do."""
    return [
        Hit(name, text)
        for text in texts
        for name, rule in _RULES.items()
        if rule.search(text.sentence) and not (text.heading and name.startswith("begins"))
    ]


# Strings of the code


def strings(root: Path) -> list[Text]:
    """Return the sentences in string constants of the product that people read."""
    return _of_product(root, _of_module)


def _of_product(root: Path, read: Callable[[Path, Path], Iterator[Text]]) -> list[Text]:
    """Return what `read` finds in each module of the product; it gets its path, and the path to show."""
    return [
        text
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*.py"))
        if "assets" not in path.parts
        for text in read(path, path.relative_to(root))
    ]


def _of_module(path: Path, shown: Path) -> Iterator[Text]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _docstrings(tree, commands=shown.parts[0] == "cli")
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in skipped or node in seen or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        if isinstance(node, ast.JoinedStr):
            seen.update(ast.walk(node) if not _nested(node) else {*_pieces(node)})
            text = "".join(
                str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in node.values
            )
        elif isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _prose(text):
            for paragraph in re.split(r"\n\s*\n", text):
                for each in sentences(f"{shown}:{node.lineno}", paragraph):
                    label = each.words <= LABEL and not each.sentence.endswith(".")
                    yield Text(each.place, each.sentence, heading=label)


def _pieces(node: ast.JoinedStr) -> Iterator[ast.AST]:
    yield from (piece for piece in node.values if isinstance(piece, ast.Constant))


def _nested(node: ast.JoinedStr) -> bool:
    """Return whether a placeholder has texts of its own."""
    return any(
        isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        for piece in node.values
        if isinstance(piece, ast.FormattedValue)
        for inner in ast.walk(piece.value)
    )


def _docstrings(tree: ast.AST, *, commands: bool) -> set[ast.AST]:
    """Return strings that stand alone as statements; those of Typer commands are help texts and stay."""
    alone: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        is_command = commands and isinstance(node, ast.FunctionDef) and node.name == "command"
        for place, inner in enumerate(body):
            stands = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
            if stands and not (is_command and place == 0):
                alone.add(inner.value)
    return alone


def _prose(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}", text)
    code = re.search(r"[{}<>]|=[^ =]|\(\?|\\|^\s*(def|import|from|with|for) ", text)
    return len(words) >= LEAST_WORDS and " " in text and code is None


# Pages


def pages(root: Path) -> list[Text]:
    """Return the sentences of the docs, without code."""
    files = [root / name for name in DOCS if (root / name).is_file()]
    files += sorted((root / "docs").rglob("*.md"))
    return [text for path in files for text in _of_page(path, path.relative_to(root))]


def _of_page(path: Path, shown: Path) -> Iterator[Text]:
    fenced = False
    block: list[str] = []
    begin = 1
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        bare = line.strip()
        item = re.match(r"([-*]|\d+\.) ", bare)
        ends = fenced or fence or not bare or bare[0] in "#|" or bare.startswith(("<!--", "![")) or item
        if ends and block:
            yield from sentences(f"{shown}:{begin}", _plain(" ".join(block)))
            block = []
        if fenced or fence or not bare or bare.startswith(("<!--", "![")) or set(bare) <= set("|-: "):
            continue
        if bare.startswith("#"):
            yield Text(f"{shown}:{number}", _plain(bare.lstrip("# ")), heading=True)
        elif bare.startswith("|"):
            for cell in bare.strip("|").split("|"):
                yield from (
                    Text(each.place, each.sentence, heading=not each.sentence.endswith("."))
                    for each in sentences(f"{shown}:{number}", _plain(cell))
                )
        else:
            begin = begin if block else number
            block.append(bare[item.end() :] if item else bare)


def _plain(text: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "CODE", text).replace("**", "")


# Docstrings and comments


def explanations(root: Path) -> list[Text]:
    """Return the sentences in docstrings, attribute docs and comments of the product, without code."""
    return _of_product(root, _explained)


def _explained(path: Path, shown: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    for node in _docstrings(ast.parse(source), commands=shown.parts[0] == "cli"):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", node.value):
                yield from sentences(f"{shown}:{node.lineno}", _plain(paragraph))
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _MARK.match(token.string):
            continue
        # Comments on lines that follow each other are one paragraph, those after code each their own.
        alone = token.line.lstrip().startswith("#")
        if not (alone and token.start[0] == last + 1):
            yield from sentences(f"{shown}:{begin}", _plain(" ".join(block)))
            block, begin = [], token.start[0]
        block.append(token.string.lstrip("# "))
        last = token.start[0] if alone else 0
    yield from sentences(f"{shown}:{begin}", _plain(" ".join(block)))


# Figures


@dataclass(frozen=True, slots=True)
class Figures:
    """How plainly a set of sentences is written."""

    sentences: int
    mean_words: float
    long: int
    ruled_out: int
    longest: int
    """Sentences above `LONGEST`."""


def figures(texts: list[Text]) -> Figures:
    """Return the figures; the length of headings and of pieces shorter than `LEAST_WORDS` does not count."""
    lengths = [text.words for text in texts if not text.heading and text.words >= LEAST_WORDS]
    return Figures(
        len(lengths),
        sum(lengths) / max(len(lengths), 1),
        sum(length > LONG for length in lengths),
        len(hits(texts)),
        sum(length > LONGEST for length in lengths),
    )


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=HERE, help="a checkout; this one if omitted")
    parser.add_argument("--list", action="store_true", help="print each ruled-out word with its place")
    parser.add_argument("--long", type=int, default=0, metavar="N", help="print the N longest sentences")
    parser.add_argument("--only", default="", metavar="PART", help="places that contain PART")
    options = parser.parse_args()
    above = f"{f'over {LONG}':>8} {f'over {LONGEST}':>8}"
    print(f"{'':24} {'sentences':>9} {'mean words':>10} {above} {'ruled out':>9}")
    for name, texts in (
        ("user-facing strings", strings(options.root)),
        ("docs", pages(options.root)),
        ("docstrings and comments", explanations(options.root)),
    ):
        chosen = [text for text in texts if options.only in text.place]
        shown = figures(chosen)
        print(
            f"{name:24} {shown.sentences:>9,} {shown.mean_words:>10.1f} {shown.long:>8,} "
            f"{shown.longest:>8,} {shown.ruled_out:>9,}"
        )
        if options.list:
            for hit in hits(chosen):
                print(f"  {hit.text.place}: {hit.rule}: {hit.text.sentence}")
        longest = sorted((text for text in chosen if not text.heading), key=lambda text: -text.words)
        for text in longest[: options.long]:
            print(f"  {text.place}: {text.words} words: {text.sentence}")


if __name__ == "__main__":
    main()
