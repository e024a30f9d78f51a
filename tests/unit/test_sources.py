"""Which files an import read, and in which state."""

import importlib
import sys
from pathlib import Path

import pytest

from rota.worker_service.loading import load_app
from rota.worker_service.sources import changed, noted_sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose modules are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "noted_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from noted_package import part\n")
    (folder / "part.py").write_text("import json\nNUMBER = 1\n")
    for name in ("noted_package", "noted_package.part", "noted_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def test_each_file_is_noted_as_it_was_when_it_was_read(package: Path) -> None:
    part = package / "part.py"
    before = part.stat()
    finders = list(sys.meta_path)
    with noted_sources() as sources:
        importlib.import_module("noted_package")
        part.write_text("NUMBER = 22\n")
    assert sys.meta_path == finders
    assert set(sources) == {str(package / "__init__.py"), str(part)}
    assert tuple(sources[str(part)]) == (before.st_mtime_ns, before.st_size)


def test_what_is_imported_already_and_what_does_not_exist_is_not_noted(package: Path) -> None:
    importlib.import_module("noted_package")
    with noted_sources() as sources:
        importlib.import_module("noted_package")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("noted_package.missing")
    assert sources == {}


def test_files_differ_by_their_time_or_size_and_those_of_one_side_do_not_count() -> None:
    ours = {"same": (1, 2), "edited": (1, 2), "ours": (1, 2)}
    theirs = {"same": [1, 2], "edited": [9, 2], "theirs": [1, 2]}
    assert changed(ours, theirs) == ["edited"]


def test_an_app_knows_the_files_of_its_import(package: Path) -> None:
    file = package.parent / "noted_app.py"
    file.write_text("import noted_package\nfrom rota import Rota\napp = Rota()\n")
    app = load_app("noted_app:app")
    assert {str(file), str(package / "part.py")} <= set(app.sources)
    assert load_app("noted_app:app").sources == app.sources
