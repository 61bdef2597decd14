"""Do the words outside the code hold? Glossary, tree, folders and pages, checked against the sources.

Each rule is also shown on a planted breach.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "interlock"

GLOSSARY = ROOT / "docs" / "glossary.md"
GLOSSARY_WORDS_MAX = 40

# Words of other things than software. Each has a plain word in the glossary; "room" is MCPx's own word.
METAPHORS = re.compile(
    r"\b(?:doors?|rungs?|floors?|desks?|drawers?|houses?|shelf|shelves|nurser(?:y|ies)|forests?|shops?|wardens?|"
    r"attics?|lodges?|errands?|visitors?)\b",
    re.IGNORECASE,
)
PRONOUNS = re.compile(r"\b(?:whoever|nobody|(?:is|was|be) had)\b", re.IGNORECASE)  # a sentence names who does it
OTHERS_WORDS = frozenset({"conformance.md", "conformance-suite.md"})  # of the specifications and their suite
VALUE = re.compile(r"([\"'])\w+\1")  # one quoted word: a name on the wire or in a file, which does not change
CLEAN_PACKAGES: tuple[str, ...] = (  # of src/interlock, in which no such word is left
    "access",
    "approvals",
    "ax",
    "catalog",
    "cli",
    "config",
    "core",
    "credentials",
    "crypto",
    "devices",
    "dispatch",
    "drivers",
    "fronts",
    "gate",
    "guard",
    "interop",
    "links",
    "mcp",
    "net",
    "node",
    "operator",
    "process",
    "store",
    "wire",
    "aql/protocol",
    "rooms/protocol",
    "names/protocol",
    "sdk/subserver",
)

PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in OTHERS_WORDS),
]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
SOURCE_PATH = re.compile(
    # `tools/list` is a method of MCP; `tools/conformance.py` is a file.
    r"`(tools/[\w/-]+\.\w+|(?:src/interlock|tests|spec|bench|examples|protocol|runtime|surface|operator_api|wire|crypto|net|config"
    r"|store|core|process|access|credentials|guard|links|catalog|approvals|gate|safety|dispatch|fronts|ax|aql|rooms"
    r"|names|devices|drivers|interop|operator|sdk|node|cli)/[\w./-]*)`"
)


def packages() -> list[str]:
    return sorted(path.parent.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("__init__.py"))


def glossary() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return [word for word, _ in rows[1:]]


def tree(text: str) -> set[str]:
    """The packages that the drawn tree names: two spaces for each level, a slash behind each package."""
    drawn = text.split("src/interlock/\n", 1)[1].split("```", 1)[0]
    found: set[str] = set()
    above: list[str] = []
    for indent, name in re.findall(r"^( +)([a-z_]+)/", drawn, re.MULTILINE):
        above = [*above[: len(indent) // 2 - 1], name]
        found.add("/".join(above))
    return found


def unplain_words(text: str) -> Iterator[str]:
    """Code in a page is an example of other people's words; a file's name in a link is not prose either."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(prose.splitlines(), 1):
        yield from (f"{number}: {word}" for word in (METAPHORS.findall(line) + PRONOUNS.findall(line)))


def unplain_code(text: str) -> Iterator[str]:
    """Names and prose of a module alike: the parts of a name count as words."""
    for number, line in enumerate(text.splitlines(), 1):
        words = VALUE.sub("", line).replace("_", " ")
        yield from (f"{number}: {word}" for word in (METAPHORS.findall(words) + PRONOUNS.findall(words)))


def modules(package: str) -> list[Path]:
    path = SOURCES / package
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def dead_links(page: Path, text: str) -> Iterator[str]:
    for target, anchor in LINK.findall(text):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            yield target
        elif anchor and path.suffix == ".md" and anchor not in _anchors(path.read_text(encoding="utf-8")):
            yield f"{target}#{anchor}"


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def dead_paths(text: str) -> Iterator[str]:
    for path in SOURCE_PATH.findall(text):
        places = (ROOT / path, SOURCES / path, SOURCES / f"{path.rstrip('/')}.py")
        if not any(place.exists() for place in places):
            yield path


def test_the_glossary_is_short_and_in_order() -> None:
    words = glossary()
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX
    assert words == sorted(set(words))


def test_a_glossary_entry_is_one_sentence() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert [word for word, meaning in rows if not re.fullmatch(r"[A-Z][^.]*(?:\.\w[^.]*)*\.", meaning)] == []


@pytest.mark.parametrize("package", packages())
def test_a_package_has_a_docstring(package: str) -> None:
    assert ast.get_docstring(ast.parse((SOURCES / package / "__init__.py").read_text(encoding="utf-8")))


def test_the_architecture_draws_every_package_and_no_other() -> None:
    drawn = tree((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert drawn == set(packages()) - {"."}, "draw new packages in ARCHITECTURE.md, under Packages"


def test_a_tree_is_read_level_by_level() -> None:
    text = "src/interlock/\n  a/  1  first\n    b/    in a\n      c/  in b\n  d/ e/\n```\n  f/\n"
    assert tree(text) == {"a", "a/b", "a/b/c", "d"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_in_plain_words(page: Path) -> None:
    assert list(unplain_words(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("package", CLEAN_PACKAGES)
def test_a_clean_package_stays_clean(package: str) -> None:
    assert modules(package)
    found = [
        f"{path.relative_to(SOURCES)}:{word}"
        for path in modules(package)
        for word in unplain_code(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("line", ["def _operator_door() -> None:", "self.desk = 1", "# nobody waits", 'f"the door"'])
def test_a_planted_word_in_code_is_found(line: str) -> None:
    assert list(unplain_code(line))


@pytest.mark.parametrize("line", ['field(name="door")', "math.floored", "indoors = 1"])
def test_values_and_longer_words_in_code_are_not_found(line: str) -> None:
    assert list(unplain_code(line)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_only_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [*dead_links(page, text), *dead_paths(text)] == []


@pytest.mark.parametrize(
    "text", ["at the operator door", "Every Rung of it", "a\nfloor", "two\nshelves", "Nobody waits", "what is had"]
)
def test_a_planted_word_is_found(text: str) -> None:
    assert list(unplain_words(text))


@pytest.mark.parametrize("text", ["outdoors", "`door`", "```\ndesk = 1\n```", "[why](0017-the-door.md)", "a room"])
def test_plain_words_are_not_found(text: str) -> None:
    assert list(unplain_words(text)) == []


def test_a_planted_dead_link_and_path_are_found() -> None:
    page = ROOT / "README.md"
    assert list(dead_links(page, "[a](docs/none.md) [b](docs/glossary.md#none) [c](docs/glossary.md#glossary)")) == [
        "docs/none.md",
        "docs/glossary.md#none",
    ]
    assert list(dead_paths("`guard/guards.py` `guard/guard.py` `aql/protocol` `tests/test_words.py` `runtime/x`")) == [
        "guard/guards.py",
        "runtime/x",
    ]
