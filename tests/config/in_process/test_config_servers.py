"""[servers.SEGMENT]: how each way to reach a server is compiled, and what does not go together."""

import pytest
from tests.config.config_project import Project

from interlock.config.load import ConfigInvalid
from interlock.config.plan import Dial, Package, SandboxPlan, ServerPlan, Spawn


def server(project: Project, body: str, env: dict[str, str] | None = None) -> ServerPlan:
    (only,) = project.load(f"[servers.s]\n{body}\n", env or {}).plan.servers
    return only


def spawn(project: Project, body: str, env: dict[str, str] | None = None) -> Spawn:
    reach = server(project, body, env).reach
    assert isinstance(reach, Spawn)
    return reach


def dial(project: Project, body: str, env: dict[str, str] | None = None) -> Dial:
    reach = server(project, body, env).reach
    assert isinstance(reach, Dial)
    return reach


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ("command = 'python -m x'", ("python", "-m", "x")),
        ("command = \"run 'a b' c\\\\ d\"", ("run", "a b", "c d")),
        ("command = ['python', '-m', 'a b', '']", ("python", "-m", "a b", "")),
        ("command = 'x -a'\nargs = ['b c', '|']", ("x", "-a", "b c", "|")),
        ("command = ['sh', '-c', 'a | b']", ("sh", "-c", "a | b")),
        ("command = '/usr/bin/x'", ("/usr/bin/x",)),
        ("docker = 'mcp/fetch:1'", ("docker", "run", "-i", "--rm", "mcp/fetch:1")),
        ("docker = 'mcp/fetch'\nargs = ['--x']", ("docker", "run", "-i", "--rm", "mcp/fetch", "--x")),
    ],
)
def test_a_command_is_split_like_a_shell_does_it(project: Project, body: str, command: tuple[str, ...]) -> None:
    assert spawn(project, body).command == command


def test_a_program_given_by_a_path_is_found_beside_the_file_or_at_home(project: Project) -> None:
    assert spawn(project, "command = './bin/x ./y'").command == (str(project.folder / "bin/x"), "./y")
    assert spawn(project, "command = ['bin/x']").command == (str(project.folder / "bin/x"),)
    assert spawn(project, "command = '~/x'").command == (str(project.home / "x"),)


def test_a_container_gets_its_variables_by_name_so_that_no_value_is_among_the_arguments(project: Project) -> None:
    reach = spawn(project, "docker = 'i'\nenv = { KEY = '${env:SECRET}' }", {"SECRET": "s3cret"})
    assert reach.command == ("docker", "run", "-i", "--rm", "-e", "KEY", "i")
    assert reach.env == {"KEY": "s3cret"}


@pytest.mark.parametrize(
    ("registry", "name"),
    [
        ("npm", "@modelcontextprotocol/server-memory"),
        ("npm", "server@1.2.3"),
        ("npm", "@scope/server@latest"),
        ("pypi", "mcp-server-time"),
        ("pypi", "mcp-server-time==2026.10.19"),
        ("pypi", "server[http]==1!2.0+local"),
    ],
)
def test_a_package_keeps_its_name_and_the_command_holds_only_arguments(
    project: Project, registry: str, name: str
) -> None:
    reach = spawn(project, f"{registry} = '{name}'\nargs = ['.']")
    assert reach.package == Package(registry=registry, name=name)  # type: ignore[arg-type]
    assert reach.command == (".",)


@pytest.mark.parametrize(
    ("reach", "name"),
    [
        ("npm", "--registry=http://evil"),
        ("npm", "a b"),
        ("npm", "git+ssh://x"),
        ("npm", "../x"),
        ("npm", "@scope"),
        ("npm", "x\\n"),
        ("pypi", "-r"),
        ("pypi", "--index-url=x"),
        ("pypi", "x>=1"),
        ("pypi", "x @ https://y"),
        ("pypi", "./x"),
        ("docker", "--privileged"),
        ("docker", "a b"),
        ("docker", "-v/:/host"),
        ("npm", ""),
    ],
)
def test_an_invalid_package_never_reaches_an_installer(project: Project, reach: str, name: str) -> None:
    assert project.problem(f'[servers.s]\n{reach} = "{name}"\n').key == f"servers.s.{reach}"


def test_a_program_starts_in_the_workspace_unless_it_says_where(project: Project) -> None:
    plan = project.load(
        "workspace = 'work'\n[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = 'x'\ncwd = 'sub'\n"
    ).plan
    folders = [each.reach.cwd for each in plan.servers if isinstance(each.reach, Spawn)]
    assert folders == [project.folder / "work", project.folder / "sub"]


def test_servers_keep_the_order_they_are_written_in(project: Project) -> None:
    plan = project.load("".join(f"[servers.{name}]\npypi = 'x'\n" for name in "cab")).plan
    assert [each.segment for each in plan.servers] == ["c", "a", "b"]


def test_a_url_is_dialled_with_its_headers(project: Project) -> None:
    body = "url = 'https://h.example/mcp?x=1'\nheaders = { X-Team = 'blue' }\ntransport = 'sse'"
    assert dial(project, body) == Dial(url="https://h.example/mcp?x=1", headers={"X-Team": "blue"}, transport="sse")


def test_tools_are_classed_by_the_names_the_server_gives_them(project: Project) -> None:
    body = "pypi = 'x'\ntools = { getTime = 'read_only', 'a.b' = 'irreversible' }"
    assert server(project, body).classes == {"getTime": "read_only", "a.b": "irreversible"}
    problem = project.problem("[servers.s]\npypi = 'x'\ntools = { t = 'readonly' }\n")
    assert problem.hint == "did you mean 'read_only'?"


@pytest.mark.parametrize(
    ("body", "key", "said"),
    [
        ("args = ['x']", "servers.s", "does not say how to reach the server; give it one of command, npm"),
        ("command = 'x'\nurl = 'http://h'", "servers.s.url", "has command and url; keep one of them"),
        ("npm = 'x'\npypi = 'x'\ndocker = 'x'", "servers.s.pypi", "has npm and pypi and docker"),
        ("url = 'http://h'\nargs = ['x']", "servers.s.args", "does not go with 'url'; it goes with command, npm"),
        ("url = 'http://h'\nenv = {}", "servers.s.env", "does not go with 'url'"),
        ("url = 'http://h'\ncwd = '.'", "servers.s.cwd", "does not go with 'url'"),
        ("docker = 'x'\ncwd = '.'", "servers.s.cwd", "does not go with 'docker'"),
        ("command = 'x'\nheaders = {}", "servers.s.headers", "does not go with 'command'; it goes with url"),
        ("command = 'x'\ntransport = 'sse'", "servers.s.transport", "must be auto or stdio beside 'command'"),
        ("url = 'http://h'\ntransport = 'stdio'", "servers.s.transport", "must be auto or http or sse beside 'url'"),
        ("command = ''", "servers.s.command", "must name a program"),
        ("command = []", "servers.s.command", "must name a program"),
        ("command = ['']", "servers.s.command", "must name a program"),
        ('command = "x \'open"', "servers.s.command", "never closed"),
        ("command = 'a && b'", "servers.s.command", "without a shell"),
        ("command = 'a > log'", "servers.s.command", "without a shell"),
        ("command = ['x', 5]", "servers.s.command[1]", "must be a string, not an integer; put it in quotes"),
        ('command = "a\\u0000b"', "servers.s.command", "NUL"),
        ("command = ['x', \"a\\u0000b\"]", "servers.s.command[1]", "NUL"),
        ("pypi = 'x'\nenv = { PORT = 80 }", "servers.s.env.PORT", "put it in quotes"),
        ("pypi = 'x'\nenv = { 'A=B' = 'x' }", "servers.s.env.'A=B'", "an environment variable can have"),
        ("pypi = 'x'\nenv = { '' = 'x' }", "servers.s.env.''", "an environment variable can have"),
        ("pypi = 'x'\ntransport = 'pipe'", "servers.s.transport", "must be one of auto, http, sse, stdio"),
    ],
)
def test_what_does_not_go_together_is_refused_at_its_key(project: Project, body: str, key: str, said: str) -> None:
    problem = project.problem(f"[servers.s]\n{body}\n")
    assert said in str(problem)
    assert problem.key == key


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h/", "http:// or https://"),
        ("h.example/mcp", "http:// or https://"),
        ("file:///etc/passwd", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("http:///path", "not a valid URL"),
        ("http://h:99999/", "not a valid URL"),
        ("http://h:x/", "not a valid URL"),
        ("http://[::1/", "not a valid URL"),
        ("http://user:pass@h/", "must not hold credentials; use headers"),
        ("http://user@h/", "must not hold credentials; use headers"),
        ("http://h/#part", "fragment"),
        ("http://h/a b", "without spaces"),
        ("http://h/\\r\\nX: y", "without spaces"),
        ("http://höst/", "in ASCII"),
    ],
)
def test_what_cannot_be_dialled_is_refused_without_repeating_it(project: Project, url: str, said: str) -> None:
    problem = project.problem(f'[servers.s]\nurl = "{url}"\n')
    assert said in str(problem)
    assert "pass" not in str(problem).replace("passwd", "")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ("{ 'X y' = 'v' }", "not a name a header can have"),
        ("{ '' = 'v' }", "not a name a header can have"),
        ("{ 'X:' = 'v' }", "not a name a header can have"),
        ('{ X = "a\\r\\nHost: b" }', "not a value a header can carry; no line breaks"),
        ('{ X = "a\\n" }', "not a value a header can carry"),
        ("{ X = ' a' }", "not a value a header can carry"),
        ("{ X = 'ö' }", "not a value a header can carry"),
        ('{ X = "a\\u0000" }', "NUL"),
        ("{ X = 1 }", "put it in quotes"),
        ("{ Host = 'x' }", "Interlock writes itself"),
        ("{ content-LENGTH = '1' }", "Interlock writes itself"),
        ("{ Mcp-Session-Id = 'x' }", "Interlock writes itself"),
        ("{ Mcp-Param-Anything = 'x' }", "Interlock writes itself"),
        ("{ X-A = '1', x-a = '2' }", "is there twice"),
        ("'X: y'", "must be a table, not a string"),
    ],
)
def test_a_value_that_no_header_can_carry_is_refused(project: Project, headers: str, said: str) -> None:
    assert said in str(project.problem(f"[servers.s]\nurl = 'http://h'\nheaders = {headers}\n"))


def test_every_bad_header_is_reported_not_only_the_first(project: Project) -> None:
    text = "[servers.s]\nurl = 'http://h'\n[servers.s.headers]\nA = '${env:OPEN'\nHost = 'x'\nB = 1\n"
    assert [problem.line for problem in project.problems(text)] == [4, 5, 6]


def test_environment_variables_are_put_where_they_are_named(project: Project) -> None:
    env = {"TOKEN": "t0ken", "HOST": "h.example", "EMPTY": ""}
    assert dial(project, "url = 'https://${env:HOST}/x'\nheaders.A = 'Bearer ${env:TOKEN}'", env) == Dial(
        url="https://h.example/x", headers={"A": "Bearer t0ken"}
    )
    reach = spawn(project, "command = 'x ${env:TOKEN}'\nargs = ['${env:TOKEN}${env:HOST}', 'a${env:EMPTY}']", env)
    assert reach.command == ("x", "t0ken", "t0kenh.example", "a")
    assert spawn(project, "pypi = 'x'\nenv.K = '${env:TOKEN}'", env).env == {"K": "t0ken"}


def test_each_server_remembers_what_was_put_into_it_and_nothing_else(project: Project) -> None:
    text = "[servers.a]\npypi = 'x'\nargs = ['${env:A}']\n[servers.b]\npypi = 'x'\nenv = { K = '${env:B}-${env:B}' }\n"
    plan = project.load(text + "[servers.c]\npypi = 'x'\n", {"A": "one", "B": "two"}).plan
    assert [each.secrets for each in plan.servers] == [("one",), ("two",), ()]


def test_a_value_that_is_put_in_is_neither_split_nor_read_again(project: Project) -> None:
    env = {"A": "two words; ${env:B}", "B": "no"}
    assert spawn(project, "command = 'x ${env:A}'", env).command == ("x", "two words; ${env:B}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("args = ['${env:A B}']", "'A B'"),
        ("args = ['${env:}']", "''"),
        ("args = ['${env:OPEN']", "without the closing brace"),
        ("args = ['${env:SECRET}${env:OPEN']", "without the closing brace"),
    ],
)
def test_a_variable_that_cannot_be_put_in_is_named_and_no_value_is_shown(
    project: Project, body: str, said: str
) -> None:
    problem = project.problem(f"[servers.s]\npypi = 'x'\n{body}\n", {"SECRET": "s3cret"})
    assert said in str(problem)
    assert "s3cret" not in str(problem)


@pytest.mark.parametrize(
    "body",
    [
        "pypi = 'x'\nargs = ['${env:NOT_SET}']",
        "pypi = 'x'\nenv.K = '${env:SECRET}${env:NOT_SET}'",
        "command = '${env:NOT_SET}'",
        "url = '${env:NOT_SET}'",
        "url = 'https://${env:NOT_SET}/mcp'",
        "url = 'https://h'\nheaders.A = 'Bearer ${env:NOT_SET}'",
    ],
)
def test_an_unset_variable_concerns_its_server_alone(project: Project, body: str) -> None:
    loaded = project.load(f"[servers.s]\n{body}\n[servers.other]\npypi = 'y'\n", {"SECRET": "s3cret"})
    assert [server.unset for server in loaded.plan.servers] == [("NOT_SET",), ()]
    (warning,) = loaded.warnings
    assert "needs the environment variable NOT_SET, which is not set" in warning.message
    assert "s3cret" not in str(warning)


def test_no_problem_shows_a_value_that_came_from_the_environment(project: Project) -> None:
    text = (
        "[servers.a]\nurl = '${env:SECRET}'\n"
        "[servers.b]\nurl = 'http://h'\nheaders.A = '${env:SECRET}'\n"
        "[servers.c]\ncommand = '~${env:SECRET}/x'\n"
    )
    problems = project.problems(text, {"SECRET": "s3cret\n"})
    assert [problem.line for problem in problems] == [2, 5, 7]
    assert "s3cret" not in "".join(map(str, problems))


def test_a_variable_written_as_other_programs_write_it_is_warned_of(project: Project) -> None:
    loaded = project.load("[servers.s]\npypi = 'x'\nargs = ['${HOME}']\n")
    (warning,) = loaded.warnings
    assert warning.line == 3
    assert warning.hint == "to use the environment variable write ${env:HOME}"
    assert loaded.plan.servers[0].reach == Spawn(
        command=("${HOME}",), cwd=project.folder, package=Package(registry="pypi", name="x")
    )


BAD_SEGMENTS = ["", "a" * 64, "GitHub", "a.b", "a b", "größe", "a\\n", "\\u0131", "a/b"]
TAKEN_SEGMENTS = ["rooms", "names", "tools", "notifications_dropped"]


@pytest.mark.parametrize("segment", [*BAD_SEGMENTS, *TAKEN_SEGMENTS])
@pytest.mark.req("AX-4.1-2")
def test_a_bad_segment_in_the_configuration_is_refused_at_start(project: Project, segment: str) -> None:
    as_server = project.problem(f'\n[servers."{segment}"]\npypi = "x"\n')
    as_root = project.problem(f'[ax]\nroot_segment = "{segment}"\n')
    assert (as_server.line, as_root.line) == (2, 2)
    assert as_root.key == "ax.root_segment"
    assert as_server.message.startswith("segment ")
    assert as_server.message == as_root.message


@pytest.mark.parametrize("segment", ["a", "0", "_", "-", "a" * 63, "room", "a__b"])
@pytest.mark.req("AX-4.1-2")
def test_a_good_segment_in_the_configuration_passes(project: Project, segment: str) -> None:
    plan = project.load(f'[ax]\nroot_segment = "{segment}"\n[servers.{segment}]\npypi = "x"\n').plan
    assert plan.ax.root_segment == segment
    assert [each.segment for each in plan.servers] == [segment]


def test_a_bad_segment_is_refused_with_a_suggestion(project: Project) -> None:
    assert project.problem("[servers.GitHub]\npypi = 'x'\n").hint == "for instance 'git_hub'"


def test_variables_that_a_nested_node_would_read_are_found_at_load_each_at_its_line(project: Project) -> None:
    text = "[servers.s]\ncommand = 'x'\n[servers.s.env]\nA = '1'\nINTERLOCK_DATA = 's3cret'\nINTERLOCK_TOKEN = 'x'\n"
    found = project.load(text).warnings
    assert [(warning.line, warning.key, warning.hint) for warning in found] == [
        (5, "servers.s.env.INTERLOCK_DATA", "remove it"),
        (6, "servers.s.env.INTERLOCK_TOKEN", "remove it"),
    ]
    assert not any("s3cret" in str(warning) for warning in found)
    assert project.load("[servers.s]\ncommand = 'x'\nenv = { MY_INTERLOCK_URL = 'x', PATH = 'y' }").warnings == ()


def test_a_server_is_in_a_sandbox_only_where_egress_or_files_is_given(project: Project) -> None:
    assert spawn(project, "command = 'x'").sandbox is None
    home = project.load("[servers.s]\ncommand = 'x'\n").plan.data / "homes" / "_servers" / "s"
    assert spawn(project, "command = 'x'\negress = []").sandbox == SandboxPlan(
        home=home, from_arguments=True, any_program=True
    )
    both = spawn(project, "npm = 'x'\negress = ['api.foo.com', '*.bar.com']\nfiles = ['notes', '~/books']").sandbox
    assert both == SandboxPlan(
        home=home,
        write=(project.folder / "notes", project.home / "books"),
        egress=("api.foo.com", "*.bar.com"),
        any_program=True,
    )


@pytest.mark.parametrize("entry", ["api.foo.com:99999", "https://foo.com", "10.0.0.0/8", "foo.com/x"])
def test_an_egress_entry_is_the_name_of_a_host(project: Project, entry: str) -> None:
    with pytest.raises(ConfigInvalid, match="the name of a host"):
        project.load(f"[servers.s]\ncommand = 'x'\negress = ['{entry}']\n")


def test_egress_to_anywhere_is_warned_of(project: Project) -> None:
    loaded = project.load("[servers.s]\ncommand = 'x'\negress = ['*']\n")
    assert ["any public host" in str(warning) for warning in loaded.warnings] == [True]


def test_a_container_is_given_the_limits_of_a_sandbox(project: Project) -> None:
    reach = spawn(project, "docker = 'i'\negress = []\nfiles = ['/data']")
    assert reach.command == ("docker", "run", "-i", "--rm", "--network", "none", "-v", "/data:/data", "i")
    assert reach.sandbox is None
    with pytest.raises(ConfigInvalid, match=r"can only be \[\] beside 'docker'"):
        project.load("[servers.s]\ndocker = 'i'\negress = ['api.foo.com']\n")


@pytest.mark.parametrize("key", ["egress = []", "files = []"])
def test_a_server_that_runs_elsewhere_is_in_no_sandbox_of_ours(project: Project, key: str) -> None:
    with pytest.raises(ConfigInvalid, match="does not go with 'url'"):
        project.load(f"[servers.s]\nurl = 'https://x.example/mcp'\n{key}\n")
