"""The line of every table, key and list entry, in every spelling TOML has for them."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.config.toml_text import KeyPath, key_lines, line_of

DOCUMENT = '''\
# first line
workspace = "."          # line 2

[node]                   # 4
listen = "a"             # 5
"quoted key" = 1         # 6
'lit.eral' = 2           # 7
"esc\\u0061ped" = 3      # 8
origins = [              # 9
  "x", # a ] in a comment
  "y]",                  # 11
  [1,
   { deep = 1,  z = [] }],   # 13
]

[ servers . "a b" ]      # 16
env.ONE = "1"            # 17
env."TWO.THREE" = """
[not.a.table]
key = "no"
ends with quotes """""   # 21
args = [\'\'\'
# not a comment
\'\'\', "b"]             # 24
when = 1979-05-27 07:32:00  # 25
table = { a.b = 1, c = { "d" = [1, 2] } }  # 26

[[tool]]                 # 28
match = "one"
[[tool]]                 # 30
match = "two"
[tool.sub]               # 32
x = 1
[[tool.list]]            # 34
y = 1
[[tool.list]]
y = 2                    # 37
[[tool]]                 # 38
match = 'three'
[[tool.list]]            # 40
'''

LINES: dict[KeyPath, int] = {
    ("workspace",): 2,
    ("node",): 4,
    ("node", "listen"): 5,
    ("node", "quoted key"): 6,
    ("node", "lit.eral"): 7,
    ("node", "escaped"): 8,
    ("node", "origins"): 9,
    ("node", "origins", 0): 10,
    ("node", "origins", 1): 11,
    ("node", "origins", 2): 12,
    ("node", "origins", 2, 0): 12,
    ("node", "origins", 2, 1): 13,
    ("node", "origins", 2, 1, "deep"): 13,
    ("node", "origins", 2, 1, "z"): 13,
    ("servers",): 16,
    ("servers", "a b"): 16,
    ("servers", "a b", "env"): 17,
    ("servers", "a b", "env", "ONE"): 17,
    ("servers", "a b", "env", "TWO.THREE"): 18,
    ("servers", "a b", "args"): 22,
    ("servers", "a b", "args", 0): 22,
    ("servers", "a b", "args", 1): 24,
    ("servers", "a b", "when"): 25,
    ("servers", "a b", "table"): 26,
    ("servers", "a b", "table", "a"): 26,
    ("servers", "a b", "table", "a", "b"): 26,
    ("servers", "a b", "table", "c"): 26,
    ("servers", "a b", "table", "c", "d"): 26,
    ("servers", "a b", "table", "c", "d", 0): 26,
    ("servers", "a b", "table", "c", "d", 1): 26,
    ("tool",): 28,
    ("tool", 0): 28,
    ("tool", 0, "match"): 29,
    ("tool", 1): 30,
    ("tool", 1, "match"): 31,
    ("tool", 1, "sub"): 32,
    ("tool", 1, "sub", "x"): 33,
    ("tool", 1, "list"): 34,
    ("tool", 1, "list", 0): 34,
    ("tool", 1, "list", 0, "y"): 35,
    ("tool", 1, "list", 1): 36,
    ("tool", 1, "list", 1, "y"): 37,
    ("tool", 2): 38,
    ("tool", 2, "match"): 39,
    ("tool", 2, "list"): 40,
    ("tool", 2, "list", 0): 40,
}


def paths(value: object, here: KeyPath = ()) -> set[KeyPath]:
    """Every path in a parsed document, as an independent parser sees it."""
    found = {here} if here else set()
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, each in inside:
        found |= paths(each, (*here, part))
    return found


def test_every_path_of_a_document_is_found_on_its_line() -> None:
    assert key_lines(DOCUMENT) == LINES


def test_the_paths_found_are_those_the_toml_parser_finds() -> None:
    assert set(LINES) == paths(tomllib.loads(DOCUMENT))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("node", "listen", "deeper"), 5),
        (("node", "missing"), 4),
        (("tool", 1, "missing", 3), 30),
        (("nowhere",), None),
        ((), None),
    ],
)
def test_a_path_that_is_not_written_falls_back_to_what_is_around_it(path: KeyPath, line: int | None) -> None:
    assert line_of(LINES, path) == line


NAMES = st.sampled_from(["a", "b-c", "_", "1", '"q q"', "'l.l'", '"\\u00e9"', '"\\""'])
SCALARS = st.sampled_from(
    ["1", "-1.5e3", "true", "inf", '"x"', '"a # b"', '"\\\\"', "'['", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00"]
)
MULTILINE = st.sampled_from(['"""\n[x]\ny = 1\n"""', "'''a\n= [\n'''", '"""""two""""" ', "''''''", '"""\\"""\n"""'])
GAPS = st.sampled_from(["", " ", "\n", " # ] } ,\n", "\n\n\t"])


def lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    entries = st.lists(st.tuples(GAPS, items, GAPS).map("".join), max_size=4)
    return st.tuples(entries, st.booleans()).map(
        lambda made: "[" + ",".join(made[0]) + (",\n" if made[0] and made[1] else "") + "]"
    )


def inline_tables(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.dictionaries(NAMES, items, max_size=3)
    return pairs.map(lambda made: "{ " + ", ".join(f"{name} = {value}" for name, value in made.items()) + " }")


VALUES = st.recursive(SCALARS | MULTILINE, lambda inner: lists(inner) | inline_tables(inner), max_leaves=8)
STATEMENTS = st.one_of(
    st.tuples(NAMES, VALUES).map(lambda made: f"{made[0]} = {made[1]}"),
    st.tuples(NAMES, NAMES, VALUES).map(lambda made: f"{made[0]} . {made[1]}= {made[2]} # end"),
    NAMES.map(lambda name: f"[{name}]"),
    st.tuples(NAMES, NAMES).map(lambda made: f"[ {made[0]}.{made[1]} ] # [x]"),
    NAMES.map(lambda name: f"[[{name}]]"),
    st.tuples(NAMES, NAMES).map(lambda made: f"[[{made[0]} . {made[1]}]]"),
    st.sampled_from(["", "# [comment]", "   "]),
)


@given(st.lists(STATEMENTS, max_size=12))
def test_any_document_gives_exactly_the_paths_the_toml_parser_finds(statements: list[str]) -> None:
    kept: list[str] = []
    for statement in statements:
        try:
            tomllib.loads("\n".join((*kept, statement)))
        except tomllib.TOMLDecodeError:
            continue
        kept.append(statement)
    text = "\n".join(kept)
    lines = key_lines(text)
    assert set(lines) == paths(tomllib.loads(text))
    starts = {text[: text.index(each, at)].count("\n") + 1 for each, at in _positions(kept)}
    last = text.count("\n") + 1
    assert all(1 <= line <= last for line in lines.values())
    assert {line for path, line in lines.items() if len(path) == 1} <= starts


def _positions(statements: list[str]) -> list[tuple[str, int]]:
    """Each statement with the offset where it starts in the joined text."""
    offset = 0
    found = []
    for statement in statements:
        found.append((statement, offset))
        offset += len(statement) + 1
    return found
