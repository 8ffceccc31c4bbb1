"""TensorBoard's files are read by its own reader; the other clients stand in as far as they are called.

The stand-ins follow wandb 0.31 and mlflow 3.17, with which the same calls were tried offline.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shardtoll.dashboards.exports.markdown import markdown
from shardtoll.dashboards.facts import figures_of_run
from shardtoll.dashboards.page import page
from shardtoll.ledger import UsageError
from tests import sample_reports

PARTS = ("compute", "exposed_comm", "exposed_copy", "idle", "unattributed")


def test_the_numbers_are_those_of_the_slowest_rank_and_the_dearest_finding():
    found = figures_of_run.scalars(sample_reports.report())
    assert found["toll_seconds/implicit-redistribute"] == 0.0094
    assert "toll_seconds/wrong-gradient" not in found, "unknown is no 0"
    assert found["findings/wrong-gradient"] == found["severity/error"] == 1
    assert found["step_seconds/total"] == 0.053
    assert sum(found[f"step_seconds/{part}"] for part in PARTS) == pytest.approx(0.053)
    assert found["exposed_ratio"] == pytest.approx(15 / 53)
    rows = [row for row in sample_reports.collectives() if row.step == 0 and row.rank == 0]
    assert found["collectives"] == len(rows) == 6
    assert found["message_bytes"] == sum(row.message_bytes or 0 for row in rows)


def test_what_is_unknown_is_left_out():
    assert figures_of_run.scalars(sample_reports.empty()) == dict.fromkeys(
        ("severity/error", "severity/warning", "severity/info"), 0.0
    )
    unknown = figures_of_run.scalars(sample_reports.unknown())
    assert unknown["collectives"] == 1
    assert not {"wire_bytes", "message_bytes"} & set(unknown)


def scalars_in(folder: Path) -> tuple[dict[str, tuple[int, float]], str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    assert tags["tensors"] == ["shardtoll/bill/text_summary"]
    assert events.SummaryMetadata(tags["tensors"][0]).plugin_data.plugin_name == "text"
    (text,) = events.Tensors(tags["tensors"][0])[0].tensor_proto.string_val
    found = {tag: events.Scalars(tag)[0] for tag in tags["scalars"]}
    return {tag: (one.step, one.value) for tag, one in found.items()}, text.decode()


def test_tensorboard_reads_what_was_written_into_a_folder(tmp_path: Path):
    pytest.importorskip("tensorboard")
    report = sample_reports.report()
    report.to_tensorboard(tmp_path, 7)
    found, text = scalars_in(tmp_path)
    assert found == {
        f"shardtoll/{name}": (7, pytest.approx(value))
        for name, value in figures_of_run.scalars(report).items()
    }
    assert text == markdown(report)


def test_tensorboard_takes_a_writer_or_says_what_it_takes():
    logged: list[tuple[str, Any, int]] = []
    writer = SimpleNamespace(
        add_scalar=lambda tag, value, step: logged.append((tag, value, step)),
        add_text=lambda tag, text, step: logged.append((tag, text, step)),
    )
    report = sample_reports.report()
    report.to_tensorboard(writer, 3)
    assert logged[-1] == ("shardtoll/bill", markdown(report), 3)
    assert dict(one[:2] for one in logged[:-1]) == {
        f"shardtoll/{name}": value for name, value in figures_of_run.scalars(report).items()
    }
    with pytest.raises(UsageError, match=r"was given int: give a SummaryWriter or a folder"):
        report.to_tensorboard(5)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("wandb", lambda report, _: report.to_wandb()),
        ("mlflow", lambda report, _: report.to_mlflow()),
        ("tensorboard", lambda report, folder: report.to_tensorboard(folder)),
    ],
)
def test_a_client_that_is_missing_is_one_line(
    name: str, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for loaded in [key for key in sys.modules if key.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [_Missing(name), *sys.meta_path])
    with pytest.raises(UsageError) as told:
        call(sample_reports.report(), tmp_path)
    assert str(told.value) == f"report.to_{name}() needs {name}, which is not installed: pip install {name}"


class _Missing:
    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class FakeWandb(ModuleType):
    """Keeps what is logged; a table refuses rows of another length, as the client does."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: Any = None
        self.logged: list[tuple[dict[str, Any], int | None]] = []
        self.files: dict[str, str] = {}

    def begin(self) -> Any:
        return SimpleNamespace(
            id="abc",
            log=lambda data, step=None: self.logged.append((data, step)),
            log_artifact=lambda artifact: artifact.keep(),
        )

    def Table(self, columns: list[str], data: list[list[Any]]) -> Any:
        assert all(len(row) == len(columns) for row in data)
        return SimpleNamespace(columns=columns, data=data)

    def Artifact(self, name: str, type: str, metadata: dict[str, Any]) -> Any:
        fake, told = self, {}

        class Kept:
            @contextmanager
            def new_file(self, path: str, mode: str, encoding: str) -> Iterator[io.StringIO]:
                file = io.StringIO()
                yield file
                told[f"{name}/{path}"] = file.getvalue()

            def keep(self) -> None:
                fake.files.update(told)

        return Kept()


def test_wandb_gets_numbers_table_and_page(monkeypatch: pytest.MonkeyPatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    report = sample_reports.report()
    with pytest.raises(UsageError, match=r"no Weights & Biases run is active: call wandb\.init\(\)"):
        report.to_wandb()
    wandb.run = wandb.begin()
    report.to_wandb(step=4)
    ((data, step),) = wandb.logged
    table = data.pop("shardtoll/bill")
    assert step == 4
    assert data == {f"shardtoll/{name}": value for name, value in figures_of_run.scalars(report).items()}
    kinds = [row[table.columns.index("kind")] for row in table.data]
    assert kinds == ["wrong-gradient", "implicit-redistribute", "latency-bound"]
    assert wandb.files == {"shardtoll-abc/report.html": page.render(report)}
    given = wandb.begin()
    wandb.run = None
    sample_reports.hostile().to_wandb(given)
    assert len(wandb.logged) == 2


class FakeMlflow(ModuleType):
    """Keeps what is logged, and refuses the names that MLflow refuses."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.active: Any = None
        self.kept: dict[tuple[str, str], Any] = {}

    def active_run(self) -> Any:
        return self.active

    def log_metrics(
        self, metrics: dict[str, float], step: int | None = None, run_id: str | None = None
    ) -> None:
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-. :/") for name in metrics)
        assert all(type(value) is float for value in metrics.values())
        self.kept[run_id or "", f"metrics {step}"] = metrics

    def log_table(self, data: dict[str, list[Any]], artifact_file: str, run_id: str | None = None) -> None:
        assert artifact_file.endswith(".json")
        self.kept[run_id or "", artifact_file] = data

    def log_text(self, text: str, artifact_file: str, run_id: str | None = None) -> None:
        self.kept[run_id or "", artifact_file] = text


def test_mlflow_gets_metrics_findings_and_page(monkeypatch: pytest.MonkeyPatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    report = sample_reports.report()
    with pytest.raises(UsageError, match=r"no MLflow run is active: call mlflow\.start_run\(\)"):
        report.to_mlflow()
    mlflow.active = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    report.to_mlflow(step=2)
    files = ("metrics 2", "shardtoll/step-2/findings.json", "shardtoll/step-2/report.html")
    assert set(mlflow.kept) == {("r1", name) for name in files}
    assert mlflow.kept["r1", "shardtoll/step-2/report.html"] == page.render(report)
    assert mlflow.kept["r1", "shardtoll/step-2/findings.json"]["rank_on_bill"] == [1, 2, 3]
    report.to_mlflow("r2")
    assert ("r2", "shardtoll/findings.json") in mlflow.kept
