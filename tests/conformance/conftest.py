"""These tests install and run other people's programs: they run when asked for by name, `pytest tests/conformance`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance import toolbox
from tests.conformance.gateway import node
from tests.conformance.tree import Tree

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [config.invocation_params.dir / argument.split("::")[0] for argument in config.args]
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A node in front of reference servers, and the folder they may see."""
    folder = tmp_path_factory.mktemp("tree").resolve()
    (folder / "hello.txt").write_text("Hello from a file.")
    toolbox.run(["git", "init", "--quiet", "--initial-branch", "trunk", str(folder)], cwd=folder)
    legacy = {
        "memory": ["/usr/bin/env", f"MEMORY_FILE_PATH={folder / 'memory.json'}", *toolbox.npm_server("memory")],
        "files": toolbox.npm_server("filesystem", str(folder)),
        "everything": toolbox.npm_server("everything", "stdio"),
        "sqlite": toolbox.pypi_server("sqlite", "--db-path", str(folder / "data.db")),
    }
    modern = {
        "time": toolbox.pypi_server("time", "--local-timezone", "UTC"),
        "git": toolbox.pypi_server("git", "--repository", str(folder)),
    }
    with node({**legacy, **modern}) as running:
        for era, servers in (("2025-11-25", legacy), ("2026-07-28", modern)):
            assert {running.link(segment)["protocol_version"] for segment in servers} == {era}
        yield Tree(running, folder)
