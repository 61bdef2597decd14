"""What keys must not say together, and what is only warned of."""

import pytest
from tests.config.config_project import Project

from interlock.config.problems import quoted_word


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.1.5", "node.example", "[2001:db8::1]"])
def test_anybody_without_a_token_from_beyond_this_machine_is_refused(project: Project, host: str) -> None:
    problem = project.problem(f"[node]\nlisten = '{host}:7411'\n[auth]\nanonymous = 'any'\n")
    assert problem.line == 4
    assert "interlock access token" in str(problem.hint)


def test_anybody_is_refused_wherever_the_two_halves_come_from(project: Project) -> None:
    project.user_file.write_text("[auth]\nanonymous = 'any'\n")
    problem = project.problem("", {"INTERLOCK_NODE__LISTEN": "0.0.0.0:1"})
    assert (problem.file, problem.line) == (str(project.user_file), 2)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost"])
def test_anybody_may_call_on_this_machine(project: Project, host: str) -> None:
    loaded = project.load(f"[node]\nlisten = '{host}:7411'\n[auth]\nanonymous = 'any'\n")
    assert loaded.plan.auth.anonymous == "any"
    assert loaded.warnings == ()


@pytest.mark.parametrize("anonymous", ["loopback", "never"])
def test_listening_beyond_this_machine_without_tls_is_warned_of(project: Project, anonymous: str) -> None:
    text = f"[node]\nlisten = '0.0.0.0:1'\noperator_listen = '0.0.0.0:2'\n[auth]\nanonymous = '{anonymous}'\n"
    assert [warning.line for warning in project.load(text).warnings] == [2, 3]


@pytest.mark.parametrize(
    "safe", ["tls_cert = 'c'\ntls_key = 'k'", "public_url = 'https://a'\noperator_url = 'HTTPS://b'"]
)
def test_tls_here_or_in_front_is_not_warned_of(project: Project, safe: str) -> None:
    text = f"[node]\nlisten = '0.0.0.0:1'\noperator_listen = '0.0.0.0:2'\n{safe}\n"
    assert project.load(text).warnings == ()


@pytest.mark.parametrize(
    ("listen", "operator_listen"),
    [
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("127.0.0.1:80", "[::]:80"),
        ("localhost:80", "127.0.0.1:80"),
        ("127.0.0.1:7412", None),
        (None, "127.0.0.1:7411"),
    ],
)
def test_both_endpoints_at_one_address_are_refused(
    project: Project, listen: str | None, operator_listen: str | None
) -> None:
    written = {"listen": listen, "operator_listen": operator_listen}
    text = "[node]\n" + "".join(f"{name} = '{value}'\n" for name, value in written.items() if value)
    problem = project.problem(text)
    assert "different addresses" in problem.message
    assert problem.line == text.count("\n")


@pytest.mark.parametrize(
    ("listen", "operator_listen"),
    [("127.0.0.1:0", "127.0.0.1:0"), ("127.0.0.1:80", "127.0.0.1:81"), ("10.0.0.1:80", "127.0.0.1:80")],
)
def test_endpoints_that_do_not_collide_are_fine(project: Project, listen: str, operator_listen: str) -> None:
    project.load(f"[node]\nlisten = '{listen}'\noperator_listen = '{operator_listen}'\n")


@pytest.mark.parametrize(("one", "other"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_half_a_tls_identity_is_refused(project: Project, one: str, other: str) -> None:
    problem = project.problem(f"[node]\n{one} = 'x.pem'\n")
    assert str(problem) == f"interlock.toml:2: '{one}' in [node] needs '{other}'; give both, or neither"


def test_a_wrong_address_is_not_judged_as_if_the_default_stood_there(project: Project) -> None:
    assert project.problem("[node]\nlisten = 'x'\noperator_listen = '127.0.0.1:7411'\n").line == 2


def test_a_proxy_on_this_machine_does_not_make_strangers_local_unsaid(project: Project) -> None:
    text = "[node]\npublic_url = 'https://mcp.example.com'\n"
    (warning,) = project.load(text).warnings
    assert warning.line == 2
    assert "auth.anonymous = 'never'" in str(warning.hint)
    assert project.load(text + "trusted_proxies = ['127.0.0.1']\n").warnings == ()
    assert project.load(text + "[auth]\nanonymous = 'never'\n").warnings == ()


def test_data_inside_the_workspace_is_warned_of(project: Project) -> None:
    (warning,) = project.load("data = './data'\n").warnings
    assert "inside the workspace" in warning.message
    (by_default,) = project.load(f"workspace = '{project.home}'\n").warnings
    assert by_default.line == 1
    project.file.unlink()
    assert any(
        "inside the workspace" in each.message for each in project.load(env={"HOME": str(project.folder)}).warnings
    )


# Their client-safe aliases are the same: the ten digits of their hashes agree.
COLLIDING = [f"{'a' * 13}{middle}{'z' * 35}" for middle in ("mmmmmmmmmmag3go", "mmmmmmmmmmbir5z")]


def test_classified_tools_that_share_an_alias_are_reported_with_their_places(project: Project) -> None:
    first, second = COLLIDING
    loaded = project.load(
        f"[servers.c]\nurl = 'http://h/mcp'\n[servers.c.tools]\n{first} = 'read_only'\nother = 'read_only'\n"
        f"{second} = 'reversible'\n"
    )
    assert [(warning.line, warning.key) for warning in loaded.warnings] == [
        (4, f"servers.c.tools.{quoted_word(first)}"),
        (6, f"servers.c.tools.{quoted_word(second)}"),
    ]
    assert all("share the alias" in warning.message for warning in loaded.warnings)
    assert all(warning.hint == "rename a segment" for warning in loaded.warnings)


def test_a_rule_for_one_tool_counts_as_its_name(project: Project) -> None:
    first, second = COLLIDING
    server = f"[servers.c]\nurl = 'http://h/mcp'\ntools = {{ {first} = 'read_only' }}\n"
    loaded = project.load(f"{server}[[tool]]\nmatch = 'c.{second}'\nhide = true\n")
    assert [warning.line for warning in loaded.warnings] == [3, 5]
    assert project.load(f"{server}[[tool]]\nmatch = 'c.a*'\nhide = true\n").warnings == ()


@pytest.mark.parametrize("tools", [("createIssue", "create_issue", "other"), ("getUser", "GetUser"), ("日本", "中国")])
def test_classified_tools_that_would_have_one_name_each_have_a_name(project: Project, tools: tuple[str, ...]) -> None:
    table = ", ".join(f"'{name}' = 'read_only'" for name in tools)
    assert project.load(f"[servers.c]\nurl = 'http://h/mcp'\ntools = {{ {table} }}\n").warnings == ()


def test_a_root_segment_is_part_of_the_names_that_are_compared(project: Project) -> None:
    first, second = COLLIDING
    table = f"tools = {{ {first} = 'read_only', {second} = 'read_only' }}"
    text = f"[ax]\nroot_segment = 'r'\n[servers.c]\nurl = 'http://h/mcp'\n{table}\n"
    assert project.load(text).warnings == ()
