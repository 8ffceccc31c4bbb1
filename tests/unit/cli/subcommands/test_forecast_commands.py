"""`shardtoll forecast`: tables, runs, files and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.rescale.sent_price import Machine
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.cli.subcommands import forecast_run

HEAD = "model,gpus,gpu,framework,seq,config,metric,tok_s_gpu,group\n"
ROWS = (
    "Llama3.1-8B,8,H100-80G SXM,torchtitan,8192,FSDP8 lbs2 SAC,tps_per_gpu,6000,a\n"
    "Llama3.1-8B,64,H100-80G SXM,torchtitan,8192,FSDP64 lbs2 SAC,tps_per_gpu,5900,a\n"
    "secret-9b,8,H100-80G SXM,torchtitan,8192,FSDP8 lbs2 SAC,tps_per_gpu,,b\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + ROWS)
    return path


def test_a_table_is_priced_scored_and_written(shardtoll, table: Path):
    target = table.with_name("out.json")
    ran = shardtoll("forecast", "eval", table, "-o", target, "-o", table.with_name("out.md"))
    assert ran.code == 0
    assert "2 of 3 rows have a price" in ran.out
    document = json.loads(target.read_text())
    first, _, last = document["rows"]
    assert first["predicted"] == first["tok_s_gpu"]["expected"]
    assert first["low"] < first["predicted"] < first["high"]
    assert first["memory_gib"]["expected"] > 20
    assert last["predicted"] is None
    assert last["reason"] == "model 'secret-9b' has no stated shape and no published one"
    assert document["weak_scaling"]["series"] == 1
    assert "| a | 2 | 2 |" in table.with_name("out.md").read_text()


def test_a_row_that_names_nothing_is_named_by_what_it_lacks(shardtoll, table: Path):
    table.write_text(f"{HEAD},1,,torchtitan,8192,FSDP8,tps_per_gpu,,a\n{ROWS}")
    ran = shardtoll("forecast", "eval", table, "-o", table.with_name("out.md"), "--width", "100")
    assert ran.code == 0
    assert "1 no model, 1 GPU " in ran.out
    assert "row 1 without a model has no price: the row names no " in ran.out
    assert "- row 1, no model: the row names no " in table.with_name("out.md").read_text()


def test_rows_priced_with_another_degree_than_stated_are_named(shardtoll, table: Path):
    table.write_text(HEAD + ROWS.replace("FSDP64 lbs2", "FSDP64 EP48 lbs2"))
    ran = shardtoll("forecast", "eval", table)
    said = "row 2: ep 48 does not divide the 64 ranks of a stage: ep 16 is priced"
    assert said in " ".join(ran.out.split())
    rows = json.loads(shardtoll("forecast", "eval", table, "--json").out)["rows"]
    assert [len(row["replaced"]) for row in rows] == [0, 1, 0]
    table.write_text(HEAD + 8 * ROWS.splitlines(keepends=True)[1].replace("FSDP64", "FSDP64 EP48"))
    assert "3 more like these" in " ".join(shardtoll("forecast", "eval", table).out.split())


def test_a_calibrated_table_follows_its_row(shardtoll, table: Path):
    ran = shardtoll("forecast", "eval", table, "--calibrate", table, "--json")
    rows = json.loads(ran.out)["rows"]
    assert rows[0]["error"] == pytest.approx(0, abs=1e-6)
    assert rows[0]["calibrated_on"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "has no column 'model': give model and gpus at least"),
        (HEAD, "no row has a price: the file has no row"),
        (HEAD + "secret,8,H100,,,,,,\n", "no row has a price: model 'secret' has no stated shape"),
    ],
)
def test_a_table_that_says_nothing_ends_in_one_line(shardtoll, table: Path, text: str, words: str):
    table.write_text(text)
    ran = shardtoll("forecast", "eval", table)
    assert ran.code == 2
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1


def test_unknown_columns_are_named_with_the_nearest_known(shardtoll, table: Path):
    table.write_text(
        "model,gpus,gpu,seq,micro_batch,sequence,layer,mood,date\nllama3-8b,8,h100-sxm,8192,1,1,2,3,4\n"
    )
    ran = shardtoll("forecast", "eval", table, "-o", table.with_name("out.md"), "--json")
    (note,) = json.loads(ran.out)["notes"]
    assert note == (
        "unknown columns are ignored: micro_batch (did you mean mbs?), sequence (did you mean seq?), "
        "layer (did you mean layers?), mood"
    )
    assert "Note: unknown columns are ignored: micro" in table.with_name("out.md").read_text()
    assert "note: unknown columns are ignored" in shardtoll("forecast", "eval", table, "--width", 200).out


def test_the_example_row_of_the_docs_has_a_price_and_no_note(shardtoll, table: Path):
    text = (Path(__file__).parents[4] / "docs" / "forecast.md").read_text()
    table.write_text(text.partition("```csv\n")[2].partition("```")[0])
    ran = shardtoll("forecast", "eval", table, "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    assert (len(answer["rows"]), answer["rows"][0]["reason"], answer["notes"]) == (1, None, [])


def test_a_run_is_priced_on_more_ranks(shardtoll, run_folder: Path):
    target = run_folder.parent / "forecast.html"
    ran = shardtoll("forecast", run_folder, "--world", 16, "-o", target, "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    assert [point["world"] for point in answer["weak"]] == [4, 8, 16]
    here, *_ = answer["weak"]
    assert here["step_ns"]["expected"] == pytest.approx(answer["measured"]["step_ns"], rel=0.05)
    assert answer["weak"][0]["efficiency"]["expected"] == pytest.approx(1, abs=0.05)
    assert "Weak scaling" in target.read_text()
    for point in (*answer["weak"], *answer["strong"]):
        band = point["step_ns"]
        assert band["low"] * 1.03 < band["expected"] < band["high"] / 1.03


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "h1000"), "no GPU named 'h1000'"),
        (("--fabric", "nowhere"), "no fabric named 'nowhere'"),
        (("-o", "x.pdf"), "-o x.pdf ends in none of .html, .json, .md"),
    ],
)
def test_a_wrong_machine_ends_in_one_line(shardtoll, run_folder: Path, options, words: str):
    ran = shardtoll("forecast", run_folder, *options)
    assert ran.code == 2
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_machine_of_one_host_gets_the_usual_links_for_more_ranks() -> None:
    one = Machine(load_fabric("h100x8"), card_of("h100-sxm"), 8)
    many = Machine(load_fabric("h100x8-ib400"), card_of("h100-sxm"), 8)
    assert [forecast_run._lacks_links(one, world) for world in (None, 8, 512)] == [False, False, True]
    assert not forecast_run._lacks_links(many, 512)
    usual = forecast_run._usual(one, None)
    assert usual is not None
    assert usual.name == "h100x8-ib400"
    assert forecast_run._usual(Machine(one.fabric, None, 8), None) is None


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_scores_keep_their_groups_in_any_width(shardtoll, table: Path, width: int) -> None:
    """Columns go one by one, the least important first, and the last line says which width shows all."""
    shown = shardtoll("forecast", "eval", table, "--width", width).out.splitlines()
    heads = next(line for line in shown if line.startswith("group "))
    assert max(map(len, shown)) <= width
    for word in ("mean", "median", "max", "in band"):
        assert word in heads
    missing = [line for line in shown if line.startswith("--width ")]
    assert bool(missing) == (width < 130)
    if missing:
        needed = max(int(line.split()[1]) for line in missing)
        assert "also shows" not in shardtoll("forecast", "eval", table, "--width", needed).out
        assert "also shows" in shardtoll("forecast", "eval", table, "--width", needed - 1).out
