"""A device on the page of servers: is what is shown of it words, and not the name of a piece of the page?"""

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.operator.processes.console.conftest import log_in
from tests.support.node_process import running_node

DEVICE = Path(__file__).parents[4] / "examples/tree/.devices/vent.toml"


def test_a_device_shows_when_it_was_last_seen(browser: Browser, tmp_path: Path) -> None:
    devices = tmp_path / "workspace" / ".devices"
    devices.mkdir(parents=True)
    (devices / "vent.toml").write_text(DEVICE.read_text())
    with running_node(tmp_path, {}) as node:
        node.wait_link("vent", {"state": "ready"})
        context = browser.new_context()
        page = log_in(node, context)
        page.goto(f"{page.url}servers?server=vent")
        facts = page.locator("[data-segment=vent] dl.facts")
        expect(facts.locator("dd").filter(has_text="profile a, last seen").locator("time")).to_have_count(1)
        assert "[object" not in page.locator("main").inner_text()
        context.close()
