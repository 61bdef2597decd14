"""Are pages, names and docstrings in plain words? Each rule is also tried on a planted breach.

Pages: the glossary, the tree in ARCHITECTURE.md, links and paths, and words that say nothing.

Sources, counted for every package of src/interlock:
- variables whose name says nothing about the value (`one`, `said`, `found` and the others in EMPTY_NAMES),
- docstrings whose first word is not a verb (functions) or a noun (classes, properties),
- class names that are used more than once.

What is left is in tests/words_left.json, for each package. A number may stay or fall, never rise. After an
improvement, `python tests/test_words.py --lower` writes the lower numbers; it refuses to write a higher one.
"""

import ast
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

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
    r"`(tools/[\w/-]+\.\w+"
    r"|(?:src/interlock|tests|spec|bench|examples|protocol|runtime|surface|operator_api|wire|crypto|net|config"
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
    assert drawn == set(capabilities()), "draw new packages in ARCHITECTURE.md, under Packages"


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


# The words of the sources.
LEFT = ROOT / "tests" / "words_left.json"
EMPTY_NAMES_MAX = 200  # the goal for the whole program
SHARED_CLASS_NAMES_MAX = 50  # likewise

_EMPTY_NAMES = "one said found told made known asked given kept came"
EMPTY_NAMES = frozenset(_EMPTY_NAMES.split())

# Base forms that a docstring of a function may begin with. A verb that is missing here is added.
_VERBS = """
Abort Accept Acknowledge Acquire Act Add Admit Advance Advise Agree Allow Announce Answer Append Apply Approve
Archive Arrange Ask Assemble Assert Assign Attach Authenticate Authorize Await Back Balance Ban Begin Bind Block
Bound Bracket Break Bring Broadcast Build Cache Calculate Call Cancel Canonicalize Capture Carry Catch Certify
Challenge Change Charge Check Choose Claim Clamp Classify Clean Clear Close Collapse Collect Combine Commit Compact
Compare Compile Complain Complete Compose Compress Compute Confirm Connect Construct Consume Continue Convert Copy
Correct Count Create Cut Debit Decide Declare Decline Decode Decompress Decrypt Deduplicate Default Defer Define
Delay Delegate Delete Deliver Demote Deny Deregister Derive Describe Destroy Detach Detect Determine Dial Digest
Disable Discard Disconnect Discover Dismiss Dispatch Display Divide Do Download Draft Drain Draw Drop Dump
Emit Enable Encode Encrypt End Enforce Enroll Enrol Enqueue Ensure Enter Enumerate Erase Escape Establish Estimate
Evaluate Examine Exchange Exclude Execute Exit Expand Expect Expire Explain Export Expose Extend Extract Fail Fetch
Fill Filter Find Finish Fit Fix Flag Flatten Flush Fold Follow Forget Format Forward Free Freeze Fulfil Gather
Generate Get Give Grant Greet Group Grow Guess Halve Hand Handle Hash Hide Hold Identify Ignore Import Include
Increase Increment Index Infer Inform Initialize Insert Inspect Install Interpret Interrupt Introspect Invalidate
Invite Invoke Issue Iterate Join Judge Keep Kill Label Launch Lay Lead Learn Lease Leave Let Lift Limit Link List
Listen Load Locate Lock Log Look Loop Lower Make Map Mark Mask Match Measure Merge Migrate Mint Mirror Mount Move
Name Narrow Negotiate Normalize Note Notify Number Obtain Offer Omit Open Order Override Pack Pad Pair Park Parse
Pass Patch Pause Peek Perform Persist Pick Pin Place Plan Play Poll Pop Populate Post Postpone Predict Prefer
Prefix Prepare Present Preserve Prevent Print Process Produce Promote Prompt Propose Prove Provide Prune Publish
Pull Pump Push Put Query Queue Quote Raise Rank React Read Rebuild Receive Recognise Recognize Recompute Reconnect
Reconstruct Record Recover Redact Redeem Redirect Reduce Refer Refill Refresh Refuse Register Reject Relay Release
Reload Remember Remind Remove Rename Render Renew Reopen Repeat Replace Replay Reply Report Represent Request
Require Reread Reserve Reset Resolve Respond Restart Restore Restrict Resume Retain Retire Retry Return Reuse
Reveal Reverse Review Revise Revoke Rewrite Rotate Round Route Run Sanitize Save Say Scan Schedule Score Seal
Search Seed Select Send Separate Serialize Serve Set Shorten Show Shut Sign Simulate Skip Sort Spawn Split Stage
Start State Stop Store Stream Strip Submit Subscribe Substitute Subtract Suggest Summarize Supply Survey Suspend
Swap Switch Synchronize Tag Take Tear Tell Terminate Test Throttle Tidy Tie Time Touch Trace Track Transfer
Transform Translate Trim Truncate Trust Try Turn Unblock Undo Unescape Unmount Unpack Unregister Unsubscribe
Unwrap Update Upgrade Upload Use Validate Verify Visit Vouch Wait Wake Walk Warn Watch Withdraw Withhold Work Wrap
Write Yield Zero
"""
VERBS = frozenset(_VERBS.split())

# First words of a phrase that names nothing: of questions, conditions, and relations to an unnamed thing.
_NOT_NOUNS = """
About After Again All Also Always And Anew Another Any Anyone Anything As At Because Before Behind Being Below
Beside Between Both But By Comes Either Else Enough Everyone Everything False For From Has Here His How If In
Inside Instead Into Is It Its Itself Leave Like Made Most Never No Nobody None Not Nothing Of On Once One Only Or
Other Others Our Ours Said Same Several Since So Some Somebody Something Stays Such That Their Them Then There
These They This Those Though Through To Told Too True Two Under Unless Until Unknown Up We What Whatever When
Where Wherever Whether Which While Who Whoever Whole Whom Whose Why With Within Without
"""
NOT_NOUNS = frozenset(_NOT_NOUNS.split())
ARTICLES = frozenset({"A", "An", "Each", "Every", "The"})


def capabilities() -> list[str]:
    return sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))


def variables(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every variable and parameter that is bound."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line) | ast.arg(arg=name, lineno=line):
                yield line, name
            case ast.ExceptHandler(name=str(name), lineno=line):
                yield line, name
            case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
                yield line, name


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and "property" in each.id for each in function.decorator_list)


def begins_with_verb(docstring: str) -> bool:
    return docstring.split()[0].rstrip(".,:;") in VERBS


def begins_with_noun(docstring: str) -> bool:
    """Tell whether a docstring begins with an article or with a word that can be a noun."""
    word = docstring.split()[0].rstrip(",:;")
    if word in ARTICLES:
        return True
    third_person = {f"{verb}s" for verb in VERBS} & NEVER_NOUNS
    return bool(re.fullmatch(r"[A-Z][\w-]*", word)) and word not in NOT_NOUNS and word not in third_person


# Third persons that are no plurals: "Holds the link" tells what a class does, "Links of a node" what it is.
_NEVER_NOUNS = """
Adds Appends Asks Authenticates Begins Brings Builds Carries Closes Collects Connects Creates Decides Delivers
Dials Does Drops Ends Enforces Finds Forgets Gives Greets Handles Hears Holds Keeps Lets Listens Makes Opens
Passes Performs Prepares Publishes Puts Reads Receives Refuses Removes Revokes Runs Says Sends Serves Shows
Splits Starts Takes Tells Tries Turns Verifies Waits Watches Writes
"""
NEVER_NOUNS = frozenset(_NEVER_NOUNS.split())


def faulty_docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the first words of every docstring that begins with the wrong kind of word."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        if isinstance(node, ast.ClassDef):
            is_right = begins_with_noun(docstring)
        elif is_property(node):
            is_right = begins_with_noun(docstring) or begins_with_verb(docstring)
        else:
            is_right = begins_with_verb(docstring)
        if not is_right:
            yield node.lineno, f"{node.name}: {' '.join(docstring.split()[:4])}"


class Words(NamedTuple):
    """The words of a package: places to improve, and the names of its classes.

    Only these are kept. The syntax trees of all sources are a million objects, which each garbage collection of the
    tests that follow would visit.
    """

    empty_names: list[str]
    docstrings: list[str]
    class_names: list[str]


@functools.cache
def words_of(package: str) -> Words:
    words = Words([], [], [])
    for path in sorted((SOURCES / package).rglob("*.py")):
        place = path.relative_to(ROOT)
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))  # a walk takes as long as the parser
        words.empty_names.extend(f"{place}:{line} {name}" for line, name in variables(nodes) if name in EMPTY_NAMES)
        words.docstrings.extend(f"{place}:{line} {text}" for line, text in faulty_docstrings(nodes))
        words.class_names.extend(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return words


def shared_class_names() -> list[str]:
    counted = Counter(name for package in capabilities() for name in words_of(package).class_names)
    return sorted(name for name, times in counted.items() if times > 1)


def measured() -> dict[str, dict[str, int]]:
    return {
        "variables": {package: len(words_of(package).empty_names) for package in capabilities()},
        "docstrings": {package: len(words_of(package).docstrings) for package in capabilities()},
        "class names": {"*": len(shared_class_names())},
    }


def allowed(kind: str, package: str) -> int:
    table: dict[str, dict[str, int]] = json.loads(LEFT.read_text(encoding="utf-8"))
    return table[kind].get(package, 0)


def complaint(places: list[str], maximum: int, advice: str) -> str:
    return f"{len(places)}, at most {maximum}. {advice}\n" + "\n".join(places)


@pytest.mark.parametrize("package", capabilities())
def test_variables_are_nouns(package: str) -> None:
    places, maximum = words_of(package).empty_names, allowed("variables", package)
    assert len(places) <= maximum, complaint(places, maximum, "Name the value: `entry`, `reply`, `match`, `request`.")


@pytest.mark.parametrize("package", capabilities())
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    places, maximum = words_of(package).docstrings, allowed("docstrings", package)
    advice = "Begin the docstring of a function with a verb ('Return'), that of a class with a noun ('A queue of')."
    assert len(places) <= maximum, complaint(places, maximum, advice)


def test_a_class_has_a_name_that_no_other_has() -> None:
    names, maximum = shared_class_names(), allowed("class names", "*")
    assert len(names) <= maximum, complaint(names, maximum, "Give the new class a name that says whose it is.")


def test_every_package_is_counted() -> None:
    table = json.loads(LEFT.read_text(encoding="utf-8"))
    assert {"wire", "gate", "cli"} <= set(capabilities())
    assert set(table["variables"]) <= set(capabilities()), "a package is gone: python tests/test_words.py --lower"


@pytest.mark.parametrize(
    "text",
    [
        "one = 1",
        "def f(said): pass",
        "[found for found in x]",
        "for kept in x: pass",
        "with a as given: pass",
        "try: pass\nexcept E as told: pass",
        "match x:\n    case [*made]: pass",
        "lambda asked: 1",
    ],
)
def test_a_planted_variable_is_found(text: str) -> None:
    assert [name for _, name in variables(ast.walk(ast.parse(text))) if name in EMPTY_NAMES]


@pytest.mark.parametrize("text", ["a.found = 1", "f(said=1)", "ones = 1", "'one'", "entry = found"])
def test_other_uses_of_the_word_are_no_variables(text: str) -> None:
    assert [name for _, name in variables(ast.walk(ast.parse(text))) if name in EMPTY_NAMES] == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    'The reply.'",
        "def f():\n    'Returns it.'",
        "async def f():\n    'Whether it is.'",
        "class C:\n    'Holds a link.'",
        "class C:\n    'What a link is.'",
        "class C:\n    '`code`: what it says.'",
        "class C:\n    @property\n    def f(self):\n        'Whether it is.'",
    ],
)
def test_a_planted_docstring_is_found(text: str) -> None:
    assert list(faulty_docstrings(ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    'Return it.'",
        "def f(): pass",
        "class C:\n    'A link.'",
        "class C:\n    'Links of a node.'",
        "class C:\n    @property\n    def f(self):\n        'The address.'",
    ],
)
def test_plain_docstrings_are_not_found(text: str) -> None:
    assert list(faulty_docstrings(ast.walk(ast.parse(text)))) == []


def lower() -> int:
    """Write the numbers of today, unless one of them has risen."""
    now = measured()
    before = json.loads(LEFT.read_text(encoding="utf-8")) if LEFT.exists() else now
    risen = [
        f"{kind} of {package}: {before[kind].get(package, 0)} to {number}"
        for kind, numbers in now.items()
        for package, number in numbers.items()
        if number > before[kind].get(package, 0)
    ]
    if risen:
        print("not written, because these rose:", *risen, sep="\n", file=sys.stderr)
        return 1
    table = {kind: {name: number for name, number in numbers.items() if number} for kind, numbers in now.items()}
    LEFT.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] != ["--lower"]:
        sys.exit("python tests/test_words.py --lower")
    sys.exit(lower())
