"""The libraries are imported as interlock.rooms, interlock.aql and interlock.subserver: as the documentation shows."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ["aql", "rooms", "subserver"]
IMPORT = re.compile(r"^\s*from interlock\.(aql|rooms|subserver) import (\w+(?:, \w+)*)$", re.MULTILINE)


def documented_imports() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    pages += (ROOT / "src/interlock/sdk").glob("*/__init__.py")
    imports = [match for page in pages for match in IMPORT.findall(page.read_text())]
    return sorted({(library, name) for library, names in imports for name in names.split(", ")})


def loaded_modules(program: str) -> set[str]:
    program = f"import sys; {program}; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_documentation_imports_from_every_library() -> None:
    assert {library for library, _ in documented_imports()} == set(LIBRARIES)


@pytest.mark.parametrize(("library", "name"), documented_imports())
def test_a_documented_import_works(library: str, name: str) -> None:
    exec(f"from interlock.{library} import {name}", {})


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_public_name_is_the_name_of_the_library(library: str) -> None:
    public = importlib.import_module(f"interlock.{library}")
    implementation = importlib.import_module(f"interlock.sdk.{library}")
    assert public.__all__ == implementation.__all__
    for name in implementation.__all__:
        assert getattr(public, name) is getattr(implementation, name)


@pytest.mark.parametrize("library", ["aql", "rooms"])
def test_type_checkers_see_every_public_name(library: str) -> None:
    stub = (ROOT / "src/interlock" / library / "__init__.pyi").read_text()
    public = importlib.import_module(f"interlock.{library}")
    assert re.findall(r"^    (\w+) as \1,$", stub, re.MULTILINE) == public.__all__


@pytest.mark.parametrize("library", ["aql", "rooms"])
def test_another_name_is_an_attribute_error(library: str) -> None:
    public = importlib.import_module(f"interlock.{library}")
    with pytest.raises(AttributeError, match=f"module 'interlock.{library}' has no attribute 'nonsense'"):
        _ = public.nonsense


@pytest.mark.parametrize(
    "program",
    [
        "import interlock.rooms, interlock.aql",
        "from interlock.rooms import room",
        "from interlock.aql import surface",
    ],
)
def test_importing_the_capability_does_not_load_the_library(program: str) -> None:
    assert [name for name in loaded_modules(program) if name.startswith("interlock.sdk")] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_importing_the_library_does_not_load_the_node(library: str) -> None:
    loaded = loaded_modules(f"from interlock.{library} import *")
    assert f"interlock.sdk.{library}" in loaded
    node = ("interlock.node", "interlock.cli", "interlock.operator", "interlock.store", "interlock.dispatch")
    assert [name for name in loaded if name.startswith(node)] == []
