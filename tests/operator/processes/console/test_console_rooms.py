"""In a real browser: the page of rooms, proposals that wait, and that nothing said in a room acts on the console."""

import contextlib
import http.client
import json
import re
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from tests.gate.held_calls import sign_configuration
from tests.operator.processes.console.conftest import Console
from tests.operator.processes.console.test_console import AA, AXE, violations
from tests.rooms.participant import token
from tests.support.node_process import RunningNode, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = pytest.mark.timeout(120)  # a browser starts slowly beside seven others


@pytest.fixture(autouse=True)
def _beds(console: Console) -> None:
    console.node.admin("/admin/rooms", "POST", {"topic": "beds"})  # where there is none


def in_room(node: RunningNode, secret: str, kind: str, payload: dict[str, Any], **more: Any) -> int:
    """What a participant without a WebSocket sends; gives the status."""
    there = http.client.HTTPConnection(node.host, node.port, timeout=10)
    with contextlib.closing(there):
        sent = json.dumps({"id": str(uuid.uuid4()), "kind": kind, "payload": payload} | more)
        there.request("POST", "/v0/topics/beds/messages", sent, {"authorization": f"Bearer {secret}"})
        return there.getresponse().status


@pytest.mark.req("X-7.3-1", "X-7.3-2", "X-7.2-1", "X-5.1-6")
def test_an_agent_is_promoted_by_somebody_who_read_its_record_and_says_why(console: Console) -> None:
    node, page = console.node, console.open("/rooms")
    secret = token(node, "planner", "beds")
    for number in range(3):
        proposed = {"method": "tools/call", "params": {"name": "water", "arguments": {"bed": number}}}
        assert in_room(node, secret, "mcp/proposal", proposed) == 202
    assert in_room(node, secret, "mcp", {"method": "x"}) == 403
    wait_for(lambda: len(node.admin("/approvals")["approvals"]) >= 3)
    room = page.get_by_label("beds")
    row = room.locator("li", has_text="planner").first
    expect(row).to_contain_text("restricted")
    expect(room).to_contain_text("Everyone in the room sees them, arguments included")
    waiting = room.locator('a[href^="/approvals/"]')
    expect(waiting).to_have_count(3)
    waiting.first.click()
    expect(page.locator("#approval")).to_contain_text("sees this proposal, arguments included")
    expect(page.locator("#edit")).to_have_count(0)  # it names no one who would do it
    ids = [one["id"] for one in node.admin("/approvals")["approvals"] if one["kind"] == "proposal"]
    console.open("/rooms")
    node.admin(f"/approvals/{ids[0]}", "POST", {"decision": "deny", "reason": "too wet"})
    expect(row).to_contain_text("tools/call: 0 of 3 approved, 1 rejected")  # live
    expect(row).to_contain_text("1 violation")
    row.get_by_role("button", name="Promote").click()
    dialog = page.locator("dialog")
    for name, value in (("Proposals", "3"), ("Approved", "0"), ("Rejected", "1"), ("Violations", "1")):
        expect(dialog.locator(f"dt:text-is('{name}') + dd")).to_have_text(value)
    expect(dialog.locator("dt:text-is('First seen') + dd")).to_have_text(re.compile(" ago$"))
    for reason in ("", "   "):
        page.get_by_label("Reason, for the record").fill(reason)
        dialog.get_by_role("button", name="Promote").click()
        expect(dialog).to_be_visible()
    page.evaluate(AXE)
    assert violations(page, AA) == []
    console.picture("promote")
    assert in_room(node, secret, "mcp", {"method": "x"}) == 403
    page.get_by_label("Reason, for the record").fill("a week without a fault")
    page.keyboard.press("Enter")
    expect(row.locator(".pill")).to_have_text("full")
    assert in_room(node, secret, "mcp", {"method": "x"}) == 202
    (kept,) = [one for one in node.admin("/admin/audit?limit=1000")["records"] if one.get("method") == "rooms/promote"]
    assert (kept["participant"], kept["reason"]) == ("planner", "a week without a fault")
    with connect(
        f"ws://{node.host}:{node.port}/v0/ws?topic=beds&protocol=mcpx/v0.1", additional_headers=bearer(secret)
    ) as socket:
        expect(row).to_contain_text("present")
        row.get_by_role("button", name="Disconnect").click()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv(10)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4403
    expect(row.locator(".pill")).to_have_text("removed")
    expect(row).to_contain_text(re.compile(r"by \S+, \d+ s ago"))
    assert in_room(node, secret, "chat", {"text": "x"}) == 403
    row.get_by_role("button", name="Let in, restricted").click()
    page.get_by_label("Reason, for the record").fill("enough")
    page.keyboard.press("Enter")
    expect(row.locator(".pill")).to_have_text("restricted")
    assert in_room(node, secret, "chat", {"text": "x"}) == 202
    for id in ids[1:]:
        node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})


@pytest.mark.req("X-8-2", "X-4.2-4")
def test_a_proposal_is_edited_before_it_is_approved(console: Console) -> None:
    node = console.node
    secret = token(node, "pruner", "beds")
    asked: dict[str, Any] = {
        "method": "tools/call",
        "params": {"name": "cut", "arguments": {"cm": 1.50, "bed": "north"}},
    }
    asked["reason"] = why_cut = "too <b>high</b> <img src=x>"
    assert in_room(node, secret, "mcp/proposal", asked, to=["shears"]) == 202
    wait_for(lambda: "pruner" in json.dumps(node.admin("/approvals")))
    (first,) = [one["id"] for one in node.admin("/approvals")["approvals"] if one["agent"] == "pruner"]
    page = console.open(f"/approvals/{first}")
    expect(page.locator("#approval")).to_contain_text(why_cut)  # as the text it is
    expect(page.locator("#approval img")).to_have_count(0)
    page.get_by_text("Edit and approve").click()
    for wrong, why in (("{", "Nothing was changed"), ("[1]", "an object")):
        page.get_by_label("Params").fill(wrong)
        page.get_by_role("button", name="Use these instead").click()
        expect(page.locator("#told")).to_contain_text(why)
    page.get_by_label("Params").fill('{"name": "cut", "arguments": {"cm": 1.0, "bed": "<b>"}}')
    page.get_by_role("button", name="Use these instead").click()
    page.wait_for_url(lambda url: "/approvals/" in url and first not in url)
    expect(page.locator("#approval pre").first).to_contain_text('"cm": 1.0')  # its digits, too
    expect(page.locator("#approval pre").first).to_contain_text("<b>")
    assert node.admin(f"/approvals/{first}")["status"] == "void"
    node.admin(f"/approvals/{page.url.rpartition('/')[2]}", "POST", {"decision": "deny"})


@pytest.mark.req("X-8-2")
def test_proposals_come_by_themselves_and_are_decided_with_the_keyboard_alone(console: Console) -> None:
    node = console.node
    secret, robot = token(node, "keen", "beds"), token(node, "mower", "beds", "full")
    page = console.open("/approvals")

    def propose(cm: int) -> str:
        """Gives the approval that the page shows without being asked, with the row of it focused."""
        params = {"name": "mow", "arguments": {"cm": cm}}
        asked = {"method": "tools/call", "params": params, "reason": f"grown to {cm} cm"}
        assert in_room(node, secret, "mcp/proposal", asked, to=["mower"]) == 202
        row = page.locator('a[href^="/approvals/"]', has_text=f"grown to {cm} cm")
        expect(row).to_contain_text(re.compile(r"[1-5]:\d\d|\d+ (s|min)"))  # the time left
        row.focus()
        return str(row.get_attribute("href")).rpartition("/")[2]

    def read(*parts: str) -> None:
        page.keyboard.press("Enter")
        expect(page.locator("#live")).to_have_text("Live")
        for part in parts:
            expect(page.locator("#approval")).to_contain_text(part)

    with connect(
        f"ws://{node.host}:{node.port}/v0/ws?topic=beds&protocol=mcpx/v0.1", additional_headers=bearer(robot)
    ) as mower:

        def told() -> Any:
            while True:
                said = json.loads(mower.recv(10))
                if said["kind"] == "mcp" and said.get("to") == ["mower"] and said["from"] != "interlock":
                    return said["payload"]["params"]["arguments"]

        propose(7)
        read("mower", '"cm": 7', "grown to 7 cm", "keen")
        page.keyboard.press("a")
        page.keyboard.press("Enter")
        assert told() == {"cm": 7}

        console.open("/approvals")
        denied = propose(8)
        read('"cm": 8')
        page.keyboard.press("d")
        page.keyboard.type("too short")
        page.keyboard.press("Enter")
        expect(page.locator("#approval[data-status=denied]")).to_contain_text("too short")
        assert node.admin(f"/approvals/{denied}")["status"] == "denied"

        console.open("/approvals")
        propose(9)
        read('"cm": 9')
        page.get_by_text("Edit and approve").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type('{"name": "mow", "arguments": {"cm": 10}}')
        page.keyboard.press("Tab")
        before = page.url
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/approvals/" in url and url != before)
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("#approval pre").first).to_contain_text('"cm": 10')
        page.keyboard.press("a")
        page.keyboard.press("Enter")
        assert told() == {"cm": 10}  # and nothing of 8 and 9

        console.open("/approvals")
        last = propose(11)
        listed = node.cli("approvals", "--kind", "proposal").stdout  # the same without a browser
        assert "mow" in listed and last[:8] in listed
        shown = node.cli("approvals", "show", last).stdout
        assert "11" in shown and "grown to 11 cm" in shown and "mower" in shown
        assert node.cli("deny", last, "--reason", "enough").returncode == 0
        expect(page.locator(f'a[href="/approvals/{last}"]')).to_have_count(0)


@pytest.mark.req("X-4.3-2", "X-4.2-4")
def test_nothing_said_in_a_room_acts_on_the_console(console: Console) -> None:
    """The console shows no chat; what it shows of a room is text. Chat is read in the terminal client."""
    node, page = console.node, console.page
    console.complaints.clear()
    secret = token(node, "eve", "beds")
    elsewhere = "http://127.0.0.1:9/spy.png"
    html = f"<img src='{elsewhere}' onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    markdown = f"![see]({elsewhere}) [click](javascript:document.title='owned')"
    for text in (html, markdown):
        for more in ({}, {"format": "plain"}, {"format": "markdown"}):
            assert in_room(node, secret, "chat", {"text": text, **more}) == 202
    proposed = {"method": html, "params": {html: markdown}, "reason": html + markdown}
    assert in_room(node, secret, "mcp/proposal", proposed) == 202
    wait_for(lambda: "eve" in json.dumps(node.admin("/approvals")))
    (id,) = [one["id"] for one in node.admin("/approvals")["approvals"] if one["agent"] == "eve"]
    asked: list[str] = []
    note = lambda request: asked.append(request.url)  # noqa: E731
    page.on("request", note)
    try:
        for path in ("/rooms", f"/approvals/{id}", "/approvals", "/activity", "/"):
            console.open(path)
            if path in ("/rooms", f"/approvals/{id}"):
                expect(page.locator("main")).to_contain_text("<img src=")  # as the text it is
            assert page.locator("main img, main script").count() == 0, path
            assert page.locator(f'main [href^="javascript"], main [href="{elsewhere}"]').count() == 0, path
            assert "owned" not in page.title()
    finally:
        page.remove_listener("request", note)
    assert asked and {urlsplit(url).netloc for url in asked} == {urlsplit(console.url).netloc}
    kept_back = [said for said in console.complaints if re.search("blocked|Trusted|Content Security|spy.png", said)]
    assert kept_back == []  # nothing was tried
    node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.req("X-6.1-2")
def test_every_page_warns_of_rooms_that_the_configuration_opens(console: Console) -> None:
    page = console.open("/tools")
    banner = page.locator("#open-rooms")
    expect(page.locator("#node")).to_have_text("home")
    expect(banner).to_have_count(0)
    written = console.node.config.read_text()
    try:
        console.node.config.write_text(written + '\n[[room]]\ntopic = "square"\nmode = "open"\n')
        sign_configuration(console.node)
        expect(banner).to_contain_text("The room square is open. Everyone who may join acts there")
        console.open("/rooms")
        expect(banner).to_be_visible()
        expect(page.get_by_label("square").locator("h2")).to_contain_text("open")
        assert banner.get_attribute("role") == "alert"
    finally:
        console.node.config.write_text(written)
    expect(banner).to_have_count(0)
