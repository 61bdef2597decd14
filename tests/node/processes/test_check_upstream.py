"""Does `interlock check --upstream` report what only the servers can tell, and leave nothing behind?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.fleet import stdio_table
from tests.support.node_process import running_node, write_config
from tests.support.odd_server import command
from tests.support.peers import LEGACY, MODERN, HttpPeer

# Both shorten to the same client-safe alias: the ten digits of their hashes agree.
COLLIDING = [f"{'a' * 13}{middle}{'z' * 35}" for middle in ("mmmmmmmmmmag3go", "mmmmmmmmmmbir5z")]
PER_PRINCIPAL = """
[[access]]
who = ["client:dots"]
names = "qualified"
"""


def names(*tools: str) -> dict[str, Any]:
    return stdio_table(command("names", "--names", json.dumps(tools)))


def check(config: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "interlock",
            "check",
            str(config),
            "--data",
            str(config.parent.parent / "data"),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def warnings(config: Path) -> dict[str, str]:
    """What `check --upstream` warns of, by key."""
    done = check(config, "--upstream", "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return {one["key"]: one["message"] for one in json.loads(done.stdout)["warnings"]}


@pytest.mark.req("AX-3.2-6")
async def test_the_form_of_names_is_the_clients_and_colliding_aliases_are_reported_by_check(tmp_path: Path) -> None:
    servers = {"c": names(*COLLIDING, "other"), "d": names("plain")}
    colliding = {f"c.{name}" for name in COLLIDING}
    with running_node(tmp_path, servers, PER_PRINCIPAL) as node:
        made = node.cli("access", "token", "--for", "client", "--name", "dots", "--json")
        token = json.loads(made.stdout)["token"]
        for version, member in ((LEGACY, "experimental"), (MODERN, "extensions")):
            for path, bearer, declares, dotted in (
                ("", None, False, False),
                ("", None, True, True),
                ("?names=qualified", None, False, True),
                ("?names=safe", None, True, False),
                ("", token, False, True),
                ("?names=safe", token, False, False),
            ):
                peer = HttpPeer(f"{node.url}/mcp{path}", version, token=bearer)
                said = {member: {"dev.interlock/ax": {}}} if declares else {}
                async with await peer.greet(said) as client:
                    expected = ["c.other", "d.plain"] if dotted else ["c__other", "d__plain"]
                    assert await listed(client) == expected, (version, path, declares)
                    if version == LEGACY:
                        peer.url = f"{node.url}/mcp?names={'safe' if dotted else 'qualified'}"
                        assert await listed(client) == expected
                    for name in colliding:
                        assert (await client.call(name)).error["code"] == -32601
        reported = check(node.config, "--upstream")
        assert {tool["name"] for tool in node.admin("/admin/tools")["tools"] if tool["withheld"]} == colliding
        assert node.link("c")["tools"] == 1
        assert node.admin("/admin/tools/routes").keys() == {"c.other", "d.plain"}
    assert reported.returncode == 0
    for name in colliding:
        assert f"'{name}' is withheld: 2 names share the alias" in reported.stdout
    assert "usable, 2 warnings, 2 servers, 2 of 2 answering with 2 tools" in reported.stdout
    assert check(node.config, "--upstream", "--strict").returncode == 1
    assert check(node.config, "--strict").returncode == 0  # the file alone does not say which tools there are
    classified = {"c": servers["c"] | {"tools": dict.fromkeys(COLLIDING, "read_only")}}
    told = check(write_config(tmp_path / "classified", classified), "--strict", "--json")
    assert told.returncode == 1
    assert [one["line"] is not None for one in json.loads(told.stdout)["warnings"]] == [True, True]


async def listed(client: Any) -> list[str]:
    return [tool["name"] for tool in (await client.request("tools/list")).result["tools"]]


def test_servers_that_do_not_come_up_are_reported_with_their_last_words(tmp_path: Path) -> None:
    servers = {
        "fine": stdio_table(raw("echo")),
        "ends": stdio_table([sys.executable, "-c", "import sys; sys.exit('no key given')"]),
        "away": {"url": "http://127.0.0.1:9/mcp"},
        "missing": {"command": "interlock-nonesuch"},
    }
    config = write_config(tmp_path, servers)
    done = check(config, "--upstream", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    found = {one["key"]: one for one in answer["warnings"]}
    assert set(found) == {"servers.ends", "servers.away", "servers.missing.command"}
    assert found["servers.ends"]["hint"] == "it wrote: no key given"
    assert {link["segment"]: link["state"] for link in answer["links"]} == {
        "fine": "ready",
        "ends": "failed",
        "away": "failed",
        "missing": "failed",
    }
    assert check(config, "--upstream", "--strict").returncode == 1


def test_rules_about_tools_that_no_server_has_are_reported(tmp_path: Path) -> None:
    extra = """
[[tool]]
match = "fine.getUser"
hide = true
[[tool]]
match = "fine.*"
hide = true
[[tool]]
match = "nothing.*"
hide = true
"""
    servers = {"fine": names("get_user", "getUser", "other") | {"tools": {"othr": "read_only", "other": "read_only"}}}
    found = warnings(write_config(tmp_path, servers, extra))
    assert found.keys() == {"tool[0].match", "tool[2].match", "servers.fine.tools.othr"}
    assert found["servers.fine.tools.othr"] == "the server has no tool 'othr'"


def test_rules_are_not_judged_while_a_server_is_away(tmp_path: Path) -> None:
    extra = '[[tool]]\nmatch = "away.anything"\nhide = true\n'
    assert warnings(write_config(tmp_path, {"away": {"url": "http://127.0.0.1:9/mcp"}}, extra)).keys() == {
        "servers.away"
    }


def test_a_node_that_runs_is_not_disturbed(tmp_path: Path) -> None:
    with running_node(tmp_path, {"fine": stdio_table(raw("echo"))}) as node:
        before = node.link("fine")
        done = check(node.config, "--upstream", "--strict")
        assert (done.returncode, done.stderr) == (0, "")
        assert "1 server, 1 of 1 answering" in done.stdout
        assert node.link("fine") == before


def test_servers_started_for_a_check_are_ended(tmp_path: Path) -> None:
    done = check(write_config(tmp_path, {"fine": stdio_table(raw("echo"))}), "--upstream", "--json")
    (link,) = json.loads(done.stdout)["links"]
    assert link["state"] == "ready"
    with pytest.raises(ProcessLookupError):
        os.kill(link["pid"], 0)


def test_a_store_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "store.db").write_bytes(b"no database" * 100)
    done = check(config, "--upstream", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (1, "store_refused")


@pytest.mark.parametrize("options", [("--upstream", "--effective"), ("--upstream", "--schema")])
def test_upstream_goes_with_neither_settings_nor_schema(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert check(write_config(tmp_path, {}), *options).returncode == 2
