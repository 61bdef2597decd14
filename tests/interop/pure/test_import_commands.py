"""Do command lines become the server blocks they mean, and never a package that was guessed?"""

from typing import Any

import pytest
from tests.interop.foreign_files import drafted_from, refused_from

from interlock.interop.protocol.launchers import Unwrapped, classify_command, unwrap_bridge


def npm(package: str, *args: str, entry: str | None = None) -> dict[str, Any]:
    return (
        {"kind": "npm", "package": package} | ({"entry": entry} if entry else {}) | ({"args": [*args]} if args else {})
    )


def pypi(package: str, *args: str, entry: str | None = None) -> dict[str, Any]:
    return npm(package, *args, entry=entry) | {"kind": "pypi"}


def binary(path: str, *args: str) -> dict[str, Any]:
    return {"kind": "binary", "path": path} | ({"args": [*args]} if args else {})


def docker(image: str, *args: str, volumes: tuple[str, ...] = ()) -> dict[str, Any]:
    block: dict[str, Any] = {"kind": "docker", "image": image}
    return block | ({"volumes": [*volumes]} if volumes else {}) | ({"args": [*args]} if args else {})


SHA = "sha256:" + "a" * 64

LINES: list[tuple[str, dict[str, Any]]] = [
    ("npx -y pkg@1.2 a", npm("pkg@1.2", "a")),
    ("npx pkg", npm("pkg")),
    ("npx --yes @scope/pkg /srv/data", npm("@scope/pkg", "/srv/data")),
    ("npx -y @scope/pkg@latest --flag", npm("@scope/pkg@latest", "--flag")),
    ("npx -q -y pkg -- --after", npm("pkg", "--after")),
    ("npx -p pkg@2 tool x", npm("pkg@2", "x", entry="tool")),
    ("npx --package=pkg -- tool", npm("pkg", entry="tool")),
    ("npx -y --package pkg tool -v", npm("pkg", "-v", entry="tool")),
    ("/usr/local/bin/npx -y pkg", npm("pkg")),
    ("C:\\nodejs\\npx.cmd -y pkg", npm("pkg")),
    ("cmd /c npx pkg", npm("pkg")),
    ("cmd.exe /C npx -y pkg@3 b", npm("pkg@3", "b")),
    ("cmd /d /s /c npx pkg", npm("pkg")),
    ("env LEVEL=x npx pkg", npm("pkg")),
    ("bunx pkg a", npm("pkg", "a")),
    ("bunx --silent @scope/pkg", npm("@scope/pkg")),
    ("bun x pkg", npm("pkg")),
    ("pnpm dlx pkg@1 a", npm("pkg@1", "a")),
    ("pnpx pkg", npm("pkg")),
    ("yarn dlx pkg", npm("pkg")),
    ("npm exec -y pkg", npm("pkg")),
    ("npm exec -- pkg a", npm("pkg", "a")),
    ("npx -y --node-options=x pkg", binary("npx", "-y", "--node-options=x", "pkg")),
    ("npx -y github:somebody/thing", binary("npx", "-y", "github:somebody/thing")),
    ("npx ./local", binary("npx", "./local")),
    ("npx -y git+https://git.example/x.git", binary("npx", "-y", "git+https://git.example/x.git")),
    ("npx", binary("npx")),
    ("npx -c echo", binary("npx", "-c", "echo")),
    ("pnpm run start", binary("pnpm", "run", "start")),
    ("uvx pkg", pypi("pkg")),
    ("uvx pkg --db /srv/x.db", pypi("pkg", "--db", "/srv/x.db")),
    ("uvx pkg@1.4.2 x", pypi("pkg==1.4.2", "x")),
    ("uvx pkg==2.0", pypi("pkg==2.0")),
    ("uvx pkg@latest", pypi("pkg")),
    ("uvx --from git-pkg==1 cmd", pypi("git-pkg==1", entry="cmd")),
    ("uvx --from pkg[extra]==1.0 pkg serve", pypi("pkg[extra]==1.0", "serve")),
    ("uvx --from=pkg cmd a", pypi("pkg", "a", entry="cmd")),
    ("uvx -q --refresh pkg", pypi("pkg")),
    ("uvx --python 3.12 pkg", pypi("pkg")),
    ("uvx --from git+https://git.example/x cmd", binary("uvx", "--from", "git+https://git.example/x", "cmd")),
    ("uvx --with other pkg", binary("uvx", "--with", "other", "pkg")),
    ("uvx --from ./here cmd", binary("uvx", "--from", "./here", "cmd")),
    ("uv tool run pkg a", pypi("pkg", "a")),
    ("uv tool run --from pkg==3 cmd", pypi("pkg==3", entry="cmd")),
    ("pipx run pkg x", pypi("pkg", "x")),
    ("pipx run --spec pkg==1.1 cmd", pypi("pkg==1.1", entry="cmd")),
    ("pipx run --no-cache pkg", pypi("pkg")),
    ("pipx run --path ./x.py", binary("pipx", "run", "--path", "./x.py")),
    ("uv run server.py", binary("uv", "run", "server.py")),
    ("uv --directory /srv/x run server", binary("uv", "--directory", "/srv/x", "run", "server")),
    ("python -m mcp_server_time", binary("python", "-m", "mcp_server_time")),
    ("python3 /srv/server.py --x", binary("python3", "/srv/server.py", "--x")),
    ("node build/index.js", binary("node", "build/index.js")),
    ("deno run -A main.ts", binary("deno", "run", "-A", "main.ts")),
    ("/srv/bin/server --stdio", binary("/srv/bin/server", "--stdio")),
    ("C:\\tools\\server.exe", binary("C:\\tools\\server.exe")),
    ("docker run -i --rm image:tag x", docker("image:tag", "x")),
    ("docker run -i --rm -e K -v /a:/b image:tag x", docker("image:tag", "x", volumes=("/a:/b",))),
    ("docker run --rm -it ghcr.example/o/i:v1", docker("ghcr.example/o/i:v1")),
    ("docker run -i --mount type=bind,src=/a,dst=/b,readonly i:1", docker("i:1", volumes=("/a:/b:ro",))),
    ("docker run -i --init --name mine i:1", docker("i:1")),
    (f"docker run -i i@{SHA}", docker(f"i@{SHA}")),
    ("docker container run -i i:1", docker("i:1")),
    ("podman run -i --rm -eK=v i:1 a", docker("i:1", "a")),
    ("docker run -i --volume=/a:/b --env K=v i:1", docker("i:1", volumes=("/a:/b",))),
    ("docker run --wormhole 7 i:1", binary("docker", "run", "--wormhole", "7", "i:1")),
    ("docker compose run server", binary("docker", "compose", "run", "server")),
    ("docker mcp gateway run", binary("docker", "mcp", "gateway", "run")),
]


@pytest.mark.req("AIP-import-4")
@pytest.mark.parametrize(("line", "block"), LINES, ids=[line for line, _ in LINES])
def test_a_command_line_becomes_the_block_it_means(line: str, block: dict[str, Any]) -> None:
    assert classify_command(tuple(line.split(" "))).server == block


@pytest.mark.req("AIP-import-4")
def test_there_are_sixty_lines() -> None:
    assert len({line for line, _ in LINES}) >= 60


@pytest.mark.req("AIP-import-4")
@pytest.mark.parametrize("shell", ["bash", "/bin/sh", "zsh", "pwsh"])
def test_a_shell_stays_a_program_and_is_warned_of(shell: str) -> None:
    found = classify_command((shell, "-Command" if shell == "pwsh" else "-c", "npx -y pkg"))
    assert found.server["kind"] == "binary"
    assert [note.code for note in found.notes] == ["shell_wrapper"]
    assert classify_command((shell, "run.sh")).notes == ()


@pytest.mark.req("AIP-import-4")
def test_options_of_docker_without_a_place_are_listed_and_not_carried_over() -> None:
    line = "docker run -i --privileged --network host --cap-add ALL -p 1:1 --user 0 image:1"
    found = classify_command(tuple(line.split()))
    assert found.server == docker("image:1")
    assert [note.code for note in found.notes] == ["docker_flag_dropped"]
    for option in ("--privileged", "--network host", "--cap-add", "-p", "--user"):
        assert option in found.notes[0].text
    assert drafted_from("cursor", {"command": "docker", "args": ["run", "--privileged", "i:1"]}).data[
        "server"
    ] == docker("i:1")


def test_a_whole_line_in_the_place_of_the_program_is_cut() -> None:
    assert classify_command(("npx -y pkg", "a")).server == npm("pkg", "a")
    assert classify_command(("/srv/my programs/server",)).server == binary("/srv/my programs/server")


def test_only_variables_passed_with_docker_options_reach_the_container() -> None:
    args = ["run", "-i", "-e", "TOKEN", "-e", "LEVEL", "-e", "MODE=fast", "i:1"]
    found = drafted_from(
        "cursor", {"command": "docker", "args": args, "env": {"TOKEN": "hush-hush", "DOCKER_HOST": "x"}}
    )
    assert found.data["server"]["env"] == {"MODE": "fast", "TOKEN": "${secrets.TOKEN}", "LEVEL": "${secrets.LEVEL}"}
    assert [(each.slug, each.value, each.backend) for each in found.secrets] == [
        ("it-mcp/token", "hush-hush", None),
        ("it-mcp/level", None, "env://LEVEL"),
    ]
    assert [note.code for note in found.notes] == ["env_dropped"]


CARRIERS: list[tuple[tuple[str, ...], dict[str, str], str, str, dict[str, str]]] = [
    (("npx", "mcp-remote", "https://a.example/mcp"), {}, "https://a.example/mcp", "http", {}),
    (
        ("npx", "-y", "mcp-remote@latest", "https://a.example/sse", "--transport", "sse-only"),
        {},
        "https://a.example/sse",
        "sse",
        {},
    ),
    (
        ("npx", "mcp-remote", "https://a.example", "3334", "--header", "X: 1", "--debug"),
        {},
        "https://a.example",
        "http",
        {"X": "1"},
    ),
    (("npx", "mcp-remote", "http://localhost:9/mcp", "--allow-http"), {}, "http://localhost:9/mcp", "http", {}),
    (
        ("npx", "mcp-remote", "https://a.example", "--header", "Authorization:${AUTH}"),
        {"AUTH": "Bearer x"},
        "https://a.example",
        "http",
        {"Authorization": "Bearer x"},
    ),
    (("npx", "-y", "supergateway", "--sse", "https://a.example/sse"), {}, "https://a.example/sse", "sse", {}),
    (
        ("npx", "-y", "supergateway", "--streamableHttp", "https://a.example/mcp", "--oauth2Bearer", "x"),
        {},
        "https://a.example/mcp",
        "http",
        {"Authorization": "Bearer x"},
    ),
    (("uvx", "mcp-proxy", "https://a.example/sse"), {}, "https://a.example/sse", "sse", {}),
    (
        ("uvx", "mcp-proxy", "--transport", "streamablehttp", "-H", "X", "1", "https://a.example"),
        {},
        "https://a.example",
        "http",
        {"X": "1"},
    ),
    (
        ("uvx", "mcp-proxy", "https://a.example/sse"),
        {"API_ACCESS_TOKEN": "t"},
        "https://a.example/sse",
        "sse",
        {"Authorization": "Bearer t"},
    ),
]


@pytest.mark.req("AIP-import-5")
@pytest.mark.parametrize(("command", "env", "url", "transport", "headers"), CARRIERS)
def test_a_carrier_is_seen_through(
    command: tuple[str, ...], env: dict[str, str], url: str, transport: str, headers: dict[str, str]
) -> None:
    found = unwrap_bridge(classify_command(command).server, env)
    assert isinstance(found, Unwrapped)
    assert (found.url, found.transport, dict(found.headers)) == (url, transport, headers)


@pytest.mark.req("AIP-import-5")
def test_a_carried_server_is_a_remote_driver_with_its_headers_in_the_store() -> None:
    raw = {
        "command": "npx",
        "args": ["mcp-remote", "https://a.example/mcp", "--header", "Authorization: Bearer hush-hush"],
    }
    found = drafted_from("claude-desktop", raw)
    assert found.data["transport"] == "http"
    assert found.data["server"] == {
        "kind": "remote",
        "url": "https://a.example/mcp",
        "headers": {"Authorization": "Bearer ${secrets.AUTHORIZATION}"},
    }
    assert [each.value for each in found.secrets] == ["hush-hush"]


@pytest.mark.req("AIP-import-5")
@pytest.mark.parametrize(
    "command",
    [
        ("npx", "mcp-remote", "https://a.example", "--wormhole"),
        ("npx", "mcp-remote", "https://a.example", "--transport", "pigeon"),
        ("npx", "supergateway", "--sse", "https://a.example", "--wormhole", "x"),
        ("uvx", "mcp-proxy", "--wormhole", "https://a.example"),
        ("npx", "mcp-remote", "https://a.example", "--header", "no colon"),
    ],
)
def test_an_unknown_option_leaves_the_carrier_with_a_note(command: tuple[str, ...]) -> None:
    found = drafted_from("cursor", {"command": command[0], "args": list(command[1:])})
    assert found.data["server"]["kind"] in {"npm", "pypi"}
    assert [note.code for note in found.notes] == ["carrier_kept"]


@pytest.mark.parametrize(
    "command", [("npx", "supergateway", "--stdio", "x"), ("uvx", "mcp-proxy", "server", "--x"), ("npx", "mcp-remote")]
)
def test_a_carrier_that_serves_is_a_program(command: tuple[str, ...]) -> None:
    assert not isinstance(unwrap_bridge(classify_command(command).server, {}), Unwrapped)


def test_an_address_that_is_not_encrypted_is_refused_as_a_driver_would_be() -> None:
    assert refused_from("cursor", {"url": "http://a.example/mcp"}).code == "insecure_url"
    assert (
        drafted_from("cursor", {"url": "http://localhost:8080/mcp"}).data["server"]["url"]
        == "http://localhost:8080/mcp"
    )
