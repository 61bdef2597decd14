"""In a real browser: are the tools of a server shown with their classes before its driver is written?"""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.operator.processes.console.conftest import NAMED, SOONER, WITHIN_MS, log_in
from tests.servers.start import raw, serving
from tests.support.node_process import running_node

pytestmark = pytest.mark.timeout(120)  # a browser starts slowly beside seven others


def test_a_server_is_shown_before_it_is_added_and_the_choice_of_the_person_counts(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        running_node(tmp_path, {}, NAMED, settings=SOONER) as node,
        browser.new_context() as context,
        serving(raw("all")) as url,
    ):
        context.set_default_timeout(WITHIN_MS)
        page = log_in(node, context)
        page.goto(page.url + "servers")
        form = page.locator("#add")
        form.get_by_label("Add a server").fill("http://127.0.0.1:9/mcp")
        form.get_by_role("button", name="Add").click()
        expect(form.get_by_role("status")).to_contain_text("the server did not come up")

        form.get_by_label("Add a server").fill(url)
        form.get_by_role("button", name="Add").click()
        proposals = page.locator("#proposals")
        choice = proposals.get_by_role("combobox").first
        expect(choice).to_be_enabled()
        assert node.admin("/admin/drivers")["drivers"] == []
        tool = str(choice.get_attribute("aria-label")).removeprefix("What ").removesuffix(" is")
        choice.select_option("reversible")
        with page.expect_response(lambda answer: answer.url.endswith("/admin/drivers")) as answer:
            proposals.get_by_role("button", name="Write the driver").click()
        added = {each["tool"]: (each["class"], each["by"]) for each in answer.value.json()["tools"]}
        assert added[tool] == ("reversible", "person")
        expect(form.get_by_role("status")).to_contain_text("was added with")
        expect(proposals).to_have_count(0)
        assert len(node.admin("/admin/drivers")["drivers"]) == 1
