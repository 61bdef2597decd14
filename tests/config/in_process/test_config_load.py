"""What a person gets for each mistake: every one of them, with file, line, key and what to write instead."""

import pytest
from tests.config.config_project import Project

from interlock.config.plan import AccessRule, Address, ToolRule
from interlock.config.problems import PROBLEMS_MAX, nearest


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_key(project: Project) -> None:
    problem = project.problem('\n[node]\nname = "x"\nlisen = "127.0.0.1:1"\n')
    assert str(problem) == "interlock.toml:4: unknown key 'lisen' in [node]; did you mean 'listen'?"
    assert (problem.file, problem.line, problem.key) == ("interlock.toml", 4, "node.lisen")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[nodes]\n", 1, "unknown table 'nodes' at the top level; did you mean 'node'?"),
        ("[mcpServers.x]\ncommand = 'x'\n", 1, "unknown table 'mcpServers' at the top level; did you mean 'servers'?"),
        ("listen = 'x'\n", 1, "unknown key 'listen' at the top level; it belongs in [node]"),
        ("lisen = 'x'\n", 1, "did you mean 'listen' in [node]?"),
        ("[node]\nworkspace = '.'\n", 2, "it belongs at the top, above the first [table]"),
        ("[auth]\nLISTEN = 'x'\n", 2, "did you mean 'listen' in [node]?"),
        ("[mcp]\nname = 'x'\n", 2, "it belongs in [node]"),
        ("[limits]\nmessage-bytes = 1\n", 2, "did you mean 'message_bytes'?"),
        ("[store]\nzzz = 1\n", 2, "known here: backend"),
        ("[servers.a]\npypi = 'x'\ntype = 'stdio'\n", 3, "did you mean 'transport'?"),
        ("[servers.a]\npypi = 'x'\n'evn' = {}\n", 3, "did you mean 'env'?"),
        ("[[access]]\nwho = ['x']\n[[access]]\nwho=['x']\nscpe = 'read'\n", 5, "in [[access]] number 2; did you mean"),
        ("node.lisen = 'x'\n", 1, "unknown key 'lisen' in [node]"),
        ("node = {\"lisen\" = 'x'}\n", 1, "unknown key 'lisen' in [node]"),
        ("[node]\n\"li\\u001bsen\" = 'x'\n", 2, "unknown key 'li\\x1bsen' in [node]; did you mean 'listen'?"),
    ],
)
def test_every_unknown_word_has_its_line_and_a_hint(project: Project, text: str, line: int, said: str) -> None:
    problem = project.problem(text)
    assert said in str(problem)
    assert problem.line == line


def test_all_problems_are_reported_in_the_order_of_the_lines(project: Project) -> None:
    problems = project.problems(
        "workspace = 5\n"
        "[node]\n"
        'listen = ":80"\n'
        "origins = [\n"
        '  "https://fine.example",\n'
        '  "*",\n'
        "]\n"
        "[[tool]]\n"
        'match = "x"\n'
        "[[tool]]\n"
        'latency_class = "Fast"\n'
        "[servers.a]\n"
        'command = "x"\n'
        'url = "http://h"\n'
    )
    assert [(problem.line, problem.key) for problem in problems] == [
        (1, "workspace"),
        (3, "node.listen"),
        (6, "node.origins[1]"),
        (10, "tool[1]"),
        (11, "tool[1].latency_class"),
        (14, "servers.a.url"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("[node]\nlisten = 127.0.0.1:80\n", 2, 15, "text needs quotes"),
        ("[node]\nlisten =\n", 2, 9, "there is no value after '='"),
        ("[node]\n[auth]\n[node]\n", 3, 6, "a key or table is given twice"),
        ("[node]\nname = 'a'\nname = 'b'\n", 3, 11, "a key or table is given twice"),
        ("[[tool]]\nmatch = 'x'\n[tool]\n", 3, 6, "a key or table is given twice"),
        ("[servers.a]\nenv = {A = '1', A = '2'}\n", 2, 24, "a key or table is given twice"),
        ("[node]\nname = 'open\n[auth]\n", 2, None, "a string is never closed"),
        ("[node]\nname = 'open\nx = 'y'\n", 2, 13, "a string is not closed on its line"),
        ('[node]\nname = "open\nx = "y"\n', 2, 13, "a string is not closed on its line"),
        ('[node]\nname = "open', 2, None, "a string is never closed"),
        ('[node]\nname = """open\n\n[auth]\n', 2, None, "a string is never closed"),
        ("[node]\nname = '''open\n\n[auth]\n", 2, None, "a string is never closed"),
        ("[node]\norigins = ['a',\n\n", 2, None, "the text ends in the middle of a value"),
        ("[node]\norigins = ['a' 'b']\n", 2, 16, "a list has no ',' or ']' here"),
        ("[node\n", 1, 6, "expected ']' at the end of a table declaration"),
        ("name\n", 1, 5, "a key without '='"),
        ("[node]\nx = \0\n", 2, 5, "no value"),
        ("[auth]\n\ntoken_days = " + "9" * 5000 + "\n", 3, None, "a number is too long"),
    ],
)
def test_broken_toml_is_refused_with_line_and_column(
    project: Project, text: str, line: int, column: int | None, said: str
) -> None:
    problem = project.problem(text)
    assert said in str(problem)
    assert (problem.line, problem.column) == (line, column)


def test_line_ends_and_byte_order_marks_of_other_systems_change_nothing(project: Project) -> None:
    text = "\ufeff# first\r\n[node]\r\nname = 'x'\r\nlisen = 1\r\n"
    assert project.problem(text.encode()).line == 4
    assert project.load("\ufeff[node]\r\nname = 'x'\r\n".encode()).plan.node.name == "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[node]]\nname = 'x'\n", "'node' must be a table, not a list; write [node] on a line of its own"),
        ("node = 1\n", "'node' must be a table, not an integer"),
        ("[tool]\nmatch = 'x'\n", "'tool' must be a list of tables, not a table; write [[tool]] above each entry"),
        ("tool = ['x']\n", "entry 1 of 'tool' must be a table, not a string"),
        ("[[servers]]\nname = 'x'\n", "'servers' must be a table of servers, not a list; write [servers.NAME]"),
        ("[servers]\ncommand = 'x'\n", "'command' in [servers] must be a table, not a string; write [servers.NAME]"),
        ("[[access]]\nscope = 'read'\n", "[[access]] number 1 needs 'who'; for instance who = [\"client:ci\""),
        ("[[access]]\nwho = []\n", "must have at least 1 entry"),
        ("[[access]]\nwho = ['']\n", "entry 1 of 'who' in [[access]] number 1 must not be empty"),
    ],
)
def test_a_table_of_the_wrong_shape_says_how_to_write_it(project: Project, text: str, said: str) -> None:
    assert said in str(project.problem(text))


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("LocalHost:80", Address("localhost", 80)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[0:0:0:0:0:0:0:1]:1", Address("::1", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(project: Project, written: str, address: Address) -> None:
    assert project.load(f'[node]\nlisten = "{written}"\n').plan.node.listen == address


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("7411", "say who may connect"),
        (":7411", "say who may connect"),
        ("http://127.0.0.1:7411", "without the scheme"),
        ("::1:7411", "in brackets"),
        ("127.0.0.1", "must be a host and a port"),
        ("127.0.0.1:70000", "port above 65535"),
        ("127.0.0.256:1", "where a host belongs"),
        ("127.1:1", "where a host belongs"),
        ("[127.0.0.1]:1", "where a host belongs"),
        ("[:::1]:1", "where a host belongs"),
        ("-host:1", "where a host belongs"),
        ("a b:1", "must be a host and a port"),
        ("*:1", "where a host belongs"),
        ("127.0.0.1:1\\n", "must be a host and a port"),
        ("127.0.0.1:٣", "must be a host and a port"),
        ("", "must be a host and a port"),
    ],
)
def test_an_invalid_address_is_refused(project: Project, written: str, said: str) -> None:
    assert said in str(project.problem(f'[node]\noperator_listen = "{written}"\n'))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("https://App.Example.com/", "https://app.example.com"),
        ("http://localhost:80", "http://localhost"),
        ("https://a.example:8443", "https://a.example:8443"),
        ("http://[::1]:6274", "http://[::1]:6274"),
        ("vscode-webview://abc", "vscode-webview://abc"),
    ],
)
def test_an_origin_is_kept_as_a_browser_sends_it(project: Project, written: str, kept: str) -> None:
    assert project.load(f'[node]\norigins = ["{written}"]\n').plan.node.origins == (kept,)


@pytest.mark.parametrize(
    "written",
    ["*", "null", "app.example.com", "https://a/path", "https://u@a", "https://a:x", "https://", "https://a b"],
)
def test_an_invalid_origin_is_refused(project: Project, written: str) -> None:
    assert project.problem(f'[node]\norigins = ["{written}"]\n').key == "node.origins[0]"


def test_trusted_proxies_are_addresses_or_networks(project: Project) -> None:
    loaded = project.load('[node]\ntrusted_proxies = ["10.1.2.3/8", "::1", "192.168.0.7"]\n')
    assert loaded.plan.node.trusted_proxies == ("10.0.0.0/8", "::1", "192.168.0.7")
    assert project.problem('[node]\ntrusted_proxies = ["proxy.example"]\n').key == "node.trusted_proxies[0]"


@pytest.mark.parametrize(
    ("written", "size"), [("2048", 2048), ('"16Mi"', 16 * 1024**2), ('"4Ki"', 4096), ('"1Gi"', 1024**3)]
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(project: Project, written: str, size: int) -> None:
    assert project.load(f"[limits]\nmessage_bytes = {written}\n").plan.limits.message_bytes == size


@pytest.mark.parametrize(
    "written", ["0", "-1", '"16MB"', '"16 Mi"', '"Mi"', '""', "1.5", "true", '"2Gi"', "9" * 40, '"-1Ki"']
)
def test_an_invalid_size_is_refused(project: Project, written: str) -> None:
    assert project.problem(f"[limits]\nmessage_bytes = {written}\n").key == "limits.message_bytes"


@pytest.mark.parametrize("written", ["nan", "inf", "-1", "0", '"60"', "true", "1e400", "9" * 400])
def test_an_invalid_length_of_time_is_refused(project: Project, written: str) -> None:
    assert project.problem(f"[mcp]\nsession_idle_s = {written}\n").key == "mcp.session_idle_s"


@pytest.mark.parametrize("written", ["true", "0", "-1", '"9"', "1.0", "3651", "9" * 400])
def test_a_number_that_is_not_whole_or_out_of_bounds_is_refused(project: Project, written: str) -> None:
    assert project.problem(f"[auth]\ntoken_days = {written}\n").key == "auth.token_days"


def test_access_and_tool_entries_become_rules_in_their_order(project: Project) -> None:
    plan = project.load(
        "[[access]]\nwho = ['client:ci']\nscope = 'read'\ntools = ['files.*']\nnames = 'qualified'\n"
        "[[access]]\nwho = ['*']\n"
        "[[tool]]\nmatch = 'files.*'\nhide = true\n"
        "[[tool]]\nmatch = '*'\nmutable = false\nlatency_class = 'slow'\nschema_version = '1.0.0-rc.1'\n"
    ).plan
    assert plan.access == (
        AccessRule(who=("client:ci",), scope="read", tools=("files.*",), names="qualified"),
        AccessRule(who=("*",)),
    )
    assert plan.tools == (
        ToolRule(match="files.*", hide=True),
        ToolRule(match="*", capability={"mutable": False, "latency_class": "slow", "schema_version": "1.0.0-rc.1"}),
    )


@pytest.mark.parametrize("written", ['"1.0"', '"v1.0.0"', '"01.0.0"', "1.0", '"1.0.0\\n"'])
def test_a_schema_version_is_a_semantic_version(project: Project, written: str) -> None:
    assert "semantic version" in project.problem(f"[[tool]]\nmatch = 'x'\nschema_version = {written}\n").message


@pytest.mark.parametrize("flag", ["mutable", "reversible", "idempotent", "hide"])
@pytest.mark.parametrize("written", ['"false"', "0", "1"])
def test_a_flag_is_true_or_false_and_nothing_like_it(project: Project, flag: str, written: str) -> None:
    assert "must be true or false" in project.problem(f"[[tool]]\nmatch = 'x'\n{flag} = {written}\n").message


def test_no_more_problems_are_shown_than_a_person_can_fix(project: Project) -> None:
    problems = project.problems("[node]\n" + "".join(f"k{index} = 1\n" for index in range(PROBLEMS_MAX + 50)))
    assert len(problems) == PROBLEMS_MAX + 1
    assert str(problems[-1]) == "50 more problems are not shown; fix these first"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lisen", "listen"),
        ("lsiten", "listen"),
        ("LISTEN", "listen"),
        ("operator-listen", "operator_listen"),
        ("orgins", "origins"),
        ("tlscert", "tls_cert"),
        ("banana", None),
        ("", None),
        ("listen" * 1000, None),
    ],
)
def test_the_nearest_word_is_suggested(word: str, meant: str | None) -> None:
    known = ["name", "listen", "public_url", "operator_listen", "operator_url", "tls_cert", "tls_key", "origins"]
    assert nearest(word, known) == meant
