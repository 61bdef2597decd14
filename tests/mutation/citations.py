"""Citations: which lines of a module say that they carry out which entries of the ledger.

A comment that names an entry (`# AX-4.2-10: the member is named`) stands for the statement it is beside or above: of a
condition the test and what it leads to, of a long statement its first lines. A docstring says where to look, and stands
for no line.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

STATEMENT_LINES_MAX = 15  # of a longer statement only the head is cited
# AX-4.1-2, AIP-19.file-3, "AIP-tools-4 and -5", "AIP-import-4 to -11"
_CITED = re.compile(r"\b((?:AX|AIP|AQL|X|REG)-[A-Za-z0-9.]+(?:-[A-Za-z]+)*)-(\d+)((?:(?:,| and| to|, and) -\d+)*)")
_FURTHER = re.compile(r"(,|and|to) -(\d+)")


class Citation(NamedTuple):
    entry: str
    line: int
    first: int  # of the lines that carry it out
    last: int


def citations(source: bytes) -> list[Citation]:
    if not _CITED.search(source.decode()):
        return []
    tree = ast.parse(source)
    found = []
    statements = {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    lines = source.decode().splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source.decode()).readline):
        if token.type != tokenize.COMMENT:
            continue
        at = token.start[0]
        for entry in cited_entries(token.string):
            first = at
            while lines[first - 1].strip().startswith("#"):  # it stands above
                first += 1
            found.append(Citation(entry, at, first, _end(statements.get(first), first)))
    return found


def cited_entries(text: str) -> Iterator[str]:
    for clause, number, further in _CITED.findall(text):
        last = int(number)
        yield f"{clause}-{last}"
        for joiner, other in _FURTHER.findall(further):
            for each in range(last + 1 if joiner == "to" else int(other), int(other) + 1):
                yield f"{clause}-{each}"
            last = int(other)


def _end(statement: ast.stmt | None, first: int) -> int:
    """The last line of a statement that is cited; of none (a part of a table), the line itself."""
    if statement is None:
        return first
    body: list[ast.stmt] = getattr(statement, "body", [])
    is_choice = isinstance(statement, ast.If | ast.For | ast.AsyncFor | ast.While)
    end = body[-1].end_lineno if is_choice else statement.end_lineno
    assert end is not None
    if end - first < STATEMENT_LINES_MAX:
        return end
    return body[0].lineno - 1 if body else first + STATEMENT_LINES_MAX - 1
