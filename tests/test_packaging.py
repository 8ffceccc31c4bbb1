"""The wheel holds the whole product under `shardtoll` and nothing else, and works where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ledger", "profiler", "analyzers", "dashboards", "cli", "samples")
BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE")
HEAVY = ("torch", "plotly", "pandas", "hta")
"""What the command line imports only when a command needs it."""

pytestmark = pytest.mark.slow


def _sources() -> set[str]:
    """Return the product's Python, TOML, JavaScript, CSS and marker files, as paths in the checkout."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".json", ".js", ".css") or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build folder in the checkout would leak old files into it."""
    copy = tmp_path_factory.mktemp("source")
    for name in BUILD_INPUTS:
        shutil.copy(ROOT / name, copy)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_every_source_file_under_shardtoll(wheel):
    packed = {name for name in _names(wheel) if ".dist-info/" not in name}
    assert packed == {f"shardtoll/{name}" for name in _sources()}


def test_nothing_generic_lands_beside_shardtoll(wheel):
    tops = {name.split("/")[0] for name in _names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shardtoll"}


def test_every_folder_with_python_is_a_listed_package():
    """A folder that is not listed is missing from the wheel without a word from setuptools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {Path(name).parent for name in _sources() if name.endswith(".py")}
    without_init = [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()]
    assert without_init == []
    listed = {f"shardtoll.{'.'.join(folder.parts)}": folder.as_posix() for folder in folders}
    assert set(project["packages"]) == set(listed)
    assert project["package-dir"] == listed


def test_every_product_folder_is_linked_for_the_type_checker():
    links = {path.name: path.resolve() for path in (ROOT / ".typing" / "shardtoll").iterdir()}
    assert links == {folder: ROOT / folder for folder in FOLDERS}


def test_the_wheel_holds_no_links_and_no_paths_of_the_build_machine(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            assert not stat.S_ISLNK(entry.external_attr >> 16), entry.filename
            assert not entry.filename.startswith(("/", "\\")), entry.filename
            assert ".." not in entry.filename.split("/"), entry.filename
            data = archive.read(entry)
            for path in (str(ROOT), str(wheel.parent.parent)):
                assert path.encode() not in data, f"{entry.filename} names {path}"


def test_the_wheel_carries_the_licence_and_names_the_project(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    assert "Name: shardtoll" in lines
    assert "License-Expression: MIT" in lines


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone; its dependencies come from ours, by a plain path entry.

    A folder that a .pth file adds is searched, but .pth files in it are not read: an editable
    install of shardtoll there cannot answer for the wheel.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=120
    )
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    ours = [path for path in sys.path if path.endswith("-packages")]
    (purelib / "dependencies.pth").write_text("\n".join(ours) + "\n")
    return folder / "bin"


def _run(command: list[str], folder: Path) -> str:
    """Run a command far from the checkout and return what it printed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=plain)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _modules(program: str, python: Path, folder: Path) -> dict[str, str | None]:
    """Return the modules loaded after the program, by name with their file."""
    tail = """
import json, sys
print(json.dumps({name: getattr(module, "__file__", None) for name, module in sys.modules.items()}))
"""
    printed = _run([str(python), "-c", program + tail], folder)
    loaded: dict[str, str | None] = json.loads(printed.splitlines()[-1])
    return loaded


def _top(modules: dict[str, str | None]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_wheel_answers_in_an_empty_environment(installed, tmp_path):
    assert "Usage" in _run([str(installed / "shardtoll"), "--help"], tmp_path)
    modules = _modules("import shardtoll.profiler", installed / "python", tmp_path)
    ours = {name: file for name, file in modules.items() if name.startswith("shardtoll.")}
    assert "shardtoll.profiler" in ours
    strangers = {
        name: file for name, file in ours.items() if not (file or "").startswith(str(installed.parent))
    }
    assert strangers == {}


def test_every_module_of_the_wheel_can_be_imported(installed, tmp_path):
    """Samples are programs for torchrun; importing one must not start it."""
    names = [
        "shardtoll." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sorted(_sources())
        if name.endswith(".py") and not name.endswith("__main__.py")
    ]
    program = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)"
    assert set(names) <= set(_modules(program, installed / "python", tmp_path))


def test_the_profiler_needs_torch_and_pyarrow_only(installed, tmp_path):
    """Whatever it loads is also loaded when only the same parts of torch and pyarrow are imported."""
    python = installed / "python"
    loaded = _modules("import shardtoll.profiler", python, tmp_path)
    theirs = [name for name in loaded if name.partition(".")[0] in ("torch", "pyarrow")]
    program = f"""
import contextlib, importlib
for name in {theirs!r}:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
"""
    allowed = _top(_modules(program, python, tmp_path)) | {"shardtoll"} | set(sys.stdlib_module_names)
    assert _top(loaded) - allowed == set()
    assert _top(loaded).isdisjoint({"pandas", "plotly", "hta", "typer", "rich"})


def test_help_imports_nothing_heavy(installed, tmp_path):
    program = """
import sys
sys.argv = ["shardtoll", "--help"]
from shardtoll.cli import main
try:
    main()
except SystemExit as leaving:
    assert not leaving.code, leaving.code
"""
    loaded = _top(_modules(program, installed / "python", tmp_path))
    assert "shardtoll" in loaded
    assert loaded.isdisjoint(HEAVY)
