"""Whatever code driver files, installs and calls through drivers can print, `interlock explain` knows."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import interlock
from interlock.cli.explain import every_code

SOURCE = Path(interlock.__file__).parent
PACKAGES = ("drivers",)
DOCUMENTED = SOURCE.parents[1] / "docs" / "driver-files.md"


def trees() -> Iterator[tuple[ModuleType, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
            yield importlib.import_module(name), ast.parse(path.read_text(encoding="utf-8"))


def takers(all_trees: list[tuple[ModuleType, ast.Module]]) -> dict[str, int | None]:
    """Functions and values that take a `code`, and at which position; None: by name alone."""
    found: dict[str, int | None] = {}
    for _, tree in all_trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                if any(isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "code" for one in node.body):
                    found.setdefault(node.name, None)
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                        found.update((node.name, place) for place in positions(one))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.update((node.name, place) for place in positions(node))
    return found


def positions(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    names = [each.arg for each in function.args.args if each.arg != "self"]
    return [names.index("code")] if "code" in names else []


def texts(node: ast.expr, module: ModuleType) -> Iterator[str]:
    """What an argument can be, as far as it is written out: a text, a constant, or a choice of these."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, module)
        yield from texts(node.orelse, module)
    elif isinstance(node, ast.Name) and isinstance(getattr(module, node.id, None), str):
        yield getattr(module, node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        value = getattr(getattr(module, node.value.id, None), node.attr, None)
        if isinstance(value, str):
            yield value


@cache
def printed() -> frozenset[str]:
    all_trees = list(trees())
    known = takers(all_trees)
    found: set[str] = set()
    for module, tree in all_trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in node.args.args][len(node.args.args) - len(node.args.defaults) :]
                defaults = zip(names, node.args.defaults, strict=True)
                found.update(text for name, each in defaults if name == "code" for text in texts(each, module))
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in known:
                continue
            place = known[name]
            given = [each.value for each in node.keywords if each.arg == "code"]
            if place is not None and place < len(node.args):
                given.append(node.args[place])
            found.update(text for each in given for text in texts(each, module))
    return frozenset(each for each in found if re.fullmatch(r"[a-z]+(_[a-z]+)*", each))


def documented() -> set[str]:
    section = DOCUMENTED.read_text(encoding="utf-8").partition("\n## Codes\n")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    cells = [row[2] if row[1].strip() in ("warnings", "notes") else row[1] for row in rows]
    return {code for cell in cells for code in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", cell)}


def test_the_codes_are_found_where_they_are_used() -> None:
    assert {"schema_invalid", "secret_undeclared", "plaintext_secret", "runner_missing", "entry_invalid"} <= printed()
    assert {"secret_undeclared", "egress_implied", "frontmatter_invalid"} <= documented()


@pytest.mark.parametrize("collected", [printed, documented])
def test_explain_knows_every_code_that_drivers_can_print(collected: object) -> None:
    assert callable(collected)
    known = {code.name for code in every_code()}
    assert sorted(collected() - known) == []
