"""Every kind of finding is known in every place that needs it; what is missing is named at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from shardtoll.analyzers.analyses import ANALYSES
from shardtoll.analyzers.verify.looked_at import LOOKS
from shardtoll.analyzers.whatif.edits.remedies import MAKERS, NO_EDIT
from shardtoll.dashboards.words.kind_words import WORDS
from shardtoll.ledger import KINDS

ROOT: Final = Path(__file__).parents[2]
NOT_OF_ANALYSES: Final = {"hang"}
"""Found by `analyzers/hang` from other records than the ledger."""


def places() -> dict[str, Collection[str]]:
    """Return each place that lists kinds, as a path and a name, and the kinds that it has."""
    pages = {path.stem for path in (ROOT / "docs" / "findings").glob("*.md")}
    index = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return {
        "analyzers/analyses.py:ANALYSES": {each.kind for each in ANALYSES} | NOT_OF_ANALYSES,
        "analyzers/verify/looked_at.py:LOOKS": LOOKS,
        "analyzers/whatif/edits/remedies.py:MAKERS or NO_EDIT": {*MAKERS, *NO_EDIT},
        "dashboards/words/kind_words.py:WORDS": WORDS,
        "docs/findings/KIND.md": pages,
        "docs/findings.md": [kind for kind in KINDS if f"findings/{kind}.md" in index],
        "mkdocs.yml": [kind for kind in KINDS if f"findings/{kind}.md" in site],
    }


def missing(kind: str, where: dict[str, Collection[str]]) -> list[str]:
    """Return the places without that kind."""
    return [place for place, kinds in where.items() if kind not in kinds]


def test_each_kind_is_in_each_place():
    where = places()
    assert not {kind: lacks for kind in KINDS if (lacks := missing(kind, where))}


def test_no_place_has_a_kind_that_is_none():
    strangers = {place: set(kinds) - set(KINDS) for place, kinds in places().items()}
    assert not {place: kinds for place, kinds in strangers.items() if kinds}


def test_a_new_kind_is_missing_everywhere():
    assert missing("made-up", places()) == list(places())


@pytest.mark.parametrize("place", list(places()))
def test_contributing_names_the_place(place: str):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text.partition("**A kind of finding.**")[2].partition("**A fabric.**")[0]
    for name in place.removesuffix(" or NO_EDIT").split(" or "):
        assert f"`{name}`" in recipe
