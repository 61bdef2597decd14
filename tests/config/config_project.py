"""A project folder with a home of its own, so that no file of the person running the tests is read."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from interlock.config.load import ConfigInvalid, Loaded, Problem, load


class Project:
    def __init__(self, root: Path) -> None:
        self.folder = root / "project"
        self.home = root / "home"
        self.user_file = self.home / ".config" / "interlock" / "interlock.toml"
        self.file = self.folder / "interlock.toml"
        self.folder.mkdir()
        self.user_file.parent.mkdir(parents=True)
        self.env = {"HOME": str(self.home)}

    def load(
        self, text: str | bytes | None = None, env: Mapping[str, str] = {}, flags: Mapping[str, str] = {}
    ) -> Loaded:
        if text is not None:
            self.file.write_bytes(text.encode() if isinstance(text, str) else text)
        return load(None, self.env | dict(env), flags)

    def problems(
        self, text: str | bytes | None = None, env: Mapping[str, str] = {}, flags: Mapping[str, str] = {}
    ) -> tuple[Problem, ...]:
        with pytest.raises(ConfigInvalid) as refused:
            self.load(text, env, flags)
        assert refused.value.problems
        return refused.value.problems

    def problem(
        self, text: str | bytes | None = None, env: Mapping[str, str] = {}, flags: Mapping[str, str] = {}
    ) -> Problem:
        (only,) = self.problems(text, env, flags)
        return only
