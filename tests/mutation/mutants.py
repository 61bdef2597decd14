"""Mutants of a source file: one small change each that a test of the changed behaviour has to notice.

In: the text of a module. Out: the changes that can be made in its functions and in the values of its constants. Values
alone: nothing is run or written.
"""

import ast
import re
from typing import NamedTuple

_BOUNDARY = {ast.Lt: (b"<", b"<="), ast.LtE: (b"<=", b"<"), ast.Gt: (b">", b">="), ast.GtE: (b">=", b">")}
_OPTION = re.compile(r"--[a-z][a-z-]*")  # of a program that is started
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_./-][A-Za-z0-9]+)*")  # route_mismatch, x-mcpax-route, tools/call, reason
# Lines that no requirement speaks of: what is logged, and what a person who debugs sees.
_UNOBSERVED_CALLS = frozenset(("debug", "info", "warning", "error", "exception", "log"))
_UNOBSERVED_FUNCTIONS = frozenset(("__repr__", "__str__", "__hash__"))


class Mutant(NamedTuple):
    file: str
    line: int
    change: str  # for people
    start: int  # in bytes
    end: int
    text: bytes

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.end :]


def mutants(source: bytes, file: str) -> list[Mutant]:
    """Every change of a module: of its functions, and of its constants."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    made = _Maker(source, file, starts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in _UNOBSERVED_FUNCTIONS:
            for statement in node.body:
                made.visit(statement)
        elif isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                    made.visit(statement.value)
    return made.mutants


class _Maker(ast.NodeVisitor):
    """Visits the bodies of functions, not the functions inside of them."""

    def __init__(self, source: bytes, file: str, starts: list[int]) -> None:
        self._source = source
        self._file = file
        self._starts = starts
        self.mutants: list[Mutant] = []

    def visit_If(self, node: ast.If) -> None:
        for always in ("False", "True"):
            self._add(node.test, f"{self._shown(node.test)} -> {always}", *self._span(node.test), always.encode())
        if isinstance(node.body[-1], ast.Return) and isinstance(node.body[-1].value, ast.Call):
            self._drop(node.body[-1])  # a refusal that is a value
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        pass

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        pass

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._negate(node.guard)
        for statement in node.body:
            self.visit(statement)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        joiner = "and" if isinstance(node.op, ast.And) else "or"
        for gone in node.values:
            rest = [each for each in node.values if each is not gone]
            kept = rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
            text = f"({ast.unparse(kept)})".encode()
            self._add(gone, f"without `{joiner} {self._shown(gone)}`", *self._span(node), text)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in _BOUNDARY:
            old, new = _BOUNDARY[type(node.ops[0])]
            start, end = self._span(node.left)[1], self._span(node.comparators[0])[0]
            between = self._source[start:end]
            if between.count(old) == 1:
                self._add(node, f"{old.decode()} -> {new.decode()}", start, end, between.replace(old, new))
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._drop(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "field":  # how a class is made, not what it does
            for keyword in node.keywords:
                if keyword.arg == "default":
                    self.visit(keyword.value)
            return
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if isinstance(node.value, ast.Compare):
            self._negate(node.value)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Compare | ast.BoolOp):
            self._negate(node.value)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr in _UNOBSERVED_CALLS:
                return
            if value.func.attr != "__init__":
                self._drop(node)
        elif isinstance(value, ast.Call):
            self._drop(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if "logging." in self._text(node):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._drop(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._drop(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # words for people

    def visit_Tuple(self, node: ast.Tuple) -> None:
        for each in node.elts:
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and _OPTION.fullmatch(each.value):
                self._add(each, f"without {each.value}", *self._span(each), b"*()")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self._span(node)
        value = node.value
        if isinstance(value, bool):
            self._add(node, f"{value} -> {not value}", start, end, str(not value).encode())
        elif isinstance(value, int | float) and abs(value) > 1:
            self._add(node, f"{value} -> {value + 1}", start, end, str(value + 1).encode())
        elif isinstance(value, str) and _WORD.fullmatch(value):
            self._add(node, f'"{value}" -> "{value}x"', start, end, repr(value + "x").encode())
        elif isinstance(value, bytes) and _WORD.fullmatch(value.decode("latin-1")):
            self._add(node, f"{value!r} -> {value + b'x'!r}", start, end, repr(value + b"x").encode())

    def _negate(self, test: ast.expr) -> None:
        start, end = self._span(test)
        self._add(test, f"not ({self._shown(test)})", start, end, b"(not (" + self._source[start:end] + b"))")

    def _drop(self, node: ast.stmt) -> None:
        self._add(node, f"without `{self._shown(node)}`", *self._span(node), b"pass")

    def _add(self, node: ast.stmt | ast.expr, change: str, start: int, end: int, text: bytes) -> None:
        self.mutants.append(Mutant(self._file, node.lineno, change, start, end, text))

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _shown(self, node: ast.stmt | ast.expr) -> str:
        text = " ".join(self._text(node).split())
        return text if len(text) <= 60 else text[:57] + "..."


def compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
