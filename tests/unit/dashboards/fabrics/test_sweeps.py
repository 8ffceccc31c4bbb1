"""The page and the JSON of evaluated sweeps: offline, escaped, the same bytes for the same input."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from shardtoll.dashboards.fabrics import sweep_plot
from shardtoll.dashboards.fabrics.sweep_figure import figure
from shardtoll.dashboards.fabrics.sweep_file import to_json
from shardtoll.dashboards.fabrics.sweep_lines import ErrorLine, SizeLine, SweepLine, SweepTable
from shardtoll.dashboards.words.text import clean
from tests import sample_reports
from tests.unit.dashboards.page.test_page import Seen

SIZES = tuple(
    SizeLine(
        1 << power, 2e4 + (1 << power), 1.1 * (2e4 + (1 << power)), 1e4, 9e9, 1e4, 5e3, "ring", "LL", "model"
    )
    for power in range(10, 20, 2)
)
ERRORS = (ErrorLine("<=64K", 4, 0.1, 0.1, 1.0, 0.01, 0.02), ErrorLine("all", 5, 0.1, 0.1, 1.0, None, None))


def line(**changed: object) -> SweepLine:
    plain = SweepLine(
        file="a.csv",
        hardware="8xH100",
        op="all_reduce",
        nodes=1,
        ranks=8,
        fabric="h100x8",
        sure="sure",
        mode="model",
        sizes=SIZES,
        fitted=(),
        on=(),
        reason=None,
        guesses=(),
        errors=ERRORS,
    )
    return replace(plain, **changed)


def table(*sweeps: SweepLine) -> SweepTable:
    return SweepTable(sweeps, (("model", ERRORS),))


def test_the_figure_has_measurement_model_and_band():
    drawn = figure(line(fitted=(SizeLine(8, 1e4),)))
    named = {trace["name"]: trace for trace in drawn.data if "name" in trace}
    assert named["measured"]["x"] == [size.message_bytes for size in SIZES]
    assert named["measured"]["y"][0] == pytest.approx(21.024)
    assert named["model"]["y"][0] == pytest.approx(1.1 * 21.024, rel=1e-5)
    assert named["speed of light"]["y"][0] == 5
    assert named["band of 9 in 10"]["y"] == [9e6] * 5
    assert named["measured, given to the model"]["x"] == [8]
    ratios = [trace for trace in drawn.data if trace.get("yaxis") == "y2" and trace["mode"] == "markers"]
    assert ratios[0]["y"] == pytest.approx([1 / 1.1] * 5, rel=1e-5)


def test_a_refusal_draws_the_measurement_alone():
    bare = tuple(SizeLine(size.message_bytes, size.measured_ns) for size in SIZES)
    drawn = figure(line(sizes=bare, reason="no <network>"))
    assert [trace["name"] for trace in drawn.data] == ["measured"]
    assert drawn.notes == ["Not predicted: no <network>."]
    assert "Not predicted: no &lt;network&gt;." in sweep_plot.render(
        table(line(sizes=bare, reason="no <network>"))
    )


def test_a_size_of_zero_is_not_drawn_on_a_logarithmic_axis():
    assert figure(line(sizes=(SizeLine(0, 1e4),))).empty
    assert figure(line(sizes=(SizeLine(0, 1e4), *SIZES))).data[0]["x"][0] == 1024


def test_the_page_loads_nothing_and_is_reproducible():
    page = sweep_plot.render(table(line()))
    assert page == sweep_plot.render(table(line()))
    seen = Seen(page)
    loading = {value for name, value in seen.attributes if name in ("src", "href", "action", "srcset")}
    assert loading == {"data:,"}
    policy = next(value for _, value in seen.attributes if value and value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"https?:|\*|'unsafe-eval'|connect-src|script-src[^;]*unsafe-inline", policy)
    assert "prefers-color-scheme: dark" in page
    assert set(json.loads(seen.scripts[0])) == {"sweep0"}
    assert 'id="sweep0-figure"' in page


@pytest.mark.parametrize("name", sorted(sample_reports.HOSTILE))
def test_hostile_names_stay_text(name: str):
    text = sample_reports.HOSTILE[name]
    hostile = line(file=text, hardware=text, fabric=text, sure=text, op=text, reason=text, guesses=(text,))
    page, plain = Seen(sweep_plot.render(table(hostile))), Seen(sweep_plot.render(table(line())))
    assert set(page.tags) <= set(plain.tags) | {"p"}
    assert page.scripts[1:] == plain.scripts[1:]
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert clean(text)[:60] in page.text
    json.loads(page.scripts[0])


def test_the_json_has_the_contract_and_null_for_unknown():
    bare = (SizeLine(8, 12_345.678),)
    sweep = line(sizes=bare, fabric=None, reason="why", mode="transferred", on=("b.csv",))
    (one,) = json.loads(to_json(table(sweep)))["sweeps"]
    assert {"file", "fabric", "mode", "points"} <= set(one)
    (point,) = one["points"]
    assert point["bytes"] == 8
    assert point["measured_us"] == 12.345678
    assert (point["predicted_us"], point["low_us"], point["high_us"]) == (None, None, None)
    assert (one["reason"], one["calibrated_on"], one["fabric"]) == ("why", ["b.csv"], None)


def test_the_page_has_the_errors_once_where_there_is_one_sweep_and_a_legend():
    alone, two = (sweep_plot.render(table(*each)) for each in ((line(),), (line(), line(file="b.csv"))))
    assert alone.count(">noise median</th>") == 1
    assert two.count(">noise median</th>") == 3
    assert "model: errors over 1 sweep<" in alone
    assert "no model can do better" in alone
