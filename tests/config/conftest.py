"""Every test here has a project folder of its own and stands in it."""

from pathlib import Path

import pytest
from tests.config.config_project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    monkeypatch.chdir(made.folder)
    return made
