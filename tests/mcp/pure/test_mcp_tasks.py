"""Are the ids of tasks replaced wherever a message holds one, and nothing else?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, complaints

from interlock.mcp import tasks
from interlock.mcp.methods import META_TASK, TASKS_CANCEL, TASKS_GET, TASKS_RESULT, Era
from interlock.mcp.tasks import Made, TaskFacts, read_made, read_task, related_task, renamed_answer, renamed_in
from interlock.wire.jsonrpc.codec import decode_object, encode_refusal, encode_value

TASK = rb'"x":{ "z":1.0 },"taskId":"th\u00e9irs","status":"working","ttl":60000,"ttlMs":70000,"n":1e400'
OURS = TASK.replace(rb'"th\u00e9irs"', b'"ours"')
THEIRS = "théirs"
RELATED = rb'{ "taskId":"th\u00e9irs","own":[ 1 ] }'


def ours(theirs: str) -> str | None:
    return "ours" if theirs == THEIRS else None


def facts(text: bytes, era: Era) -> TaskFacts | str:
    return read_task(decode_object(text) or {}, era)


# Reading


@pytest.mark.parametrize(("era", "ttl_s"), [(Era.LEGACY, 60.0), (Era.MODERN, 70.0)])
def test_a_task_is_read_in_the_words_of_its_era(era: Era, ttl_s: float) -> None:
    assert facts(b"{%b}" % TASK, era) == TaskFacts(THEIRS, "working", ttl_s, None)


@pytest.mark.parametrize("ttl", [b"null", b"-1", b"true", b'"5"', b"[]", b"1e400", b"9" * 400])
def test_a_time_to_live_nobody_understands_is_none(ttl: bytes) -> None:
    read = facts(b'{"taskId":"t","ttl":%b}' % ttl, Era.LEGACY)
    assert isinstance(read, TaskFacts)
    assert read.ttl_s is None


@pytest.mark.parametrize("task_id", [b"null", b"7", b"[]", b'""', b"{}", rb'"\ud800"', b'"%b"' % (b"x" * 1023)])
def test_an_id_that_is_no_text_or_too_long_is_none(task_id: bytes) -> None:
    assert isinstance(facts(b'{"taskId":%b}' % task_id, Era.MODERN), str)
    assert isinstance(facts(b"{}", Era.MODERN), str)


def test_an_id_may_be_as_long_as_documented() -> None:
    longest = b"x" * (tasks.ID_BYTES_MAX - 2)
    assert isinstance(facts(b'{"taskId":"%b"}' % longest, Era.LEGACY), TaskFacts)


@pytest.mark.parametrize(
    ("era", "result"),
    [
        (Era.LEGACY, b'{"content":[]}'),
        (Era.LEGACY, b'{"content":[{"text":"\\"task\\""}]}'),
        (Era.LEGACY, b'{"resultType":"task","taskId":"t"}'),
        (Era.LEGACY, b'["task"]'),
        (Era.MODERN, b'{"resultType":"complete","task":{"taskId":"t"}}'),
        (Era.MODERN, b'{"kind":"task","taskId":"t"}'),
        (Era.MODERN, b'"task"'),
    ],
)
def test_a_result_that_is_no_task_is_none(era: Era, result: bytes) -> None:
    assert read_made(Raw(result), era) is None


# Renaming


def test_a_legacy_task_keeps_everything_but_its_id() -> None:
    result = b'{"a":{ },"task":{%b},"_meta":{"k": 1,"%b":%b}}' % (TASK, META_TASK.encode(), RELATED)
    made = read_made(Raw(result), Era.LEGACY)
    assert isinstance(made, Made)
    related = RELATED.replace(b"th\\u00e9irs", b"ours").replace(b"{ ", b"{").replace(b" }", b"}")
    expected = b'{"a":{ },"task":{%b},"_meta":{"k":1,"%b":%b}}' % (OURS, META_TASK.encode(), related)
    assert made.rename_task("ours", ours) == expected


def test_a_modern_task_keeps_everything_but_its_id() -> None:
    made = read_made(Raw(b'{"resultType":"task",%b}' % TASK), Era.MODERN)
    assert isinstance(made, Made)
    assert made.rename_task("ours", ours) == b'{"resultType":"task",%b}' % OURS


@pytest.mark.parametrize("method", [TASKS_GET, TASKS_CANCEL])
def test_an_answer_is_about_the_task_that_was_asked_for(method: str) -> None:
    assert encode_value(renamed_answer(Raw(b"{%b}" % TASK), method, THEIRS, ours)) == b"{%b}" % OURS
    for other in (b'{"taskId":"another"}', b'{"taskId":7}', b"[]", b"null"):
        assert isinstance(renamed_answer(Raw(other), method, THEIRS, ours), str)


def test_an_answer_to_get_has_a_task_and_an_acknowledgement_need_not() -> None:
    assert isinstance(renamed_answer(Raw(b'{"status":"working"}'), TASKS_GET, THEIRS, ours), str)
    assert renamed_answer(Raw(b"{}"), TASKS_CANCEL, THEIRS, ours) == {}


def test_a_result_is_the_tools_own_but_for_the_task_it_belongs_to() -> None:
    own = b'{"taskId":"the tool\'s own","result":{"_meta":{"%b":%b}},"_meta":{"%b":%b,"k":1}}'
    mark = META_TASK.encode()
    members = renamed_answer(Raw(own % (mark, RELATED, mark, RELATED)), TASKS_RESULT, THEIRS, ours)
    assert isinstance(members, dict)
    said: Any = json.loads(encode_value(members))
    assert said["taskId"] == "the tool's own"
    assert said["result"]["_meta"][META_TASK]["taskId"] == THEIRS  # not ours to look into
    assert said["_meta"] == {META_TASK: {"taskId": "ours", "own": [1]}, "k": 1}


def test_a_task_inside_a_modern_answer_is_renamed_where_it_may_be_named() -> None:
    text = b'{"taskId":"th\\u00e9irs","result":{"content":[ ],"_meta":{"%b":%b}}}' % (META_TASK.encode(), RELATED)
    said: Any = json.loads(encode_value(renamed_answer(Raw(text), TASKS_GET, THEIRS, ours)))
    assert said["result"] == {"content": [], "_meta": {META_TASK: {"taskId": "ours", "own": [1]}}}


@pytest.mark.parametrize("related", [b"7", b"null", b"{}", b'{"taskId":5}', b'{"taskId":"nobody\'s"}'])
def test_a_task_the_other_side_does_not_know_is_not_named(related: bytes) -> None:
    text = b'{"a":{ },"_meta":{"%b":%b}}' % (META_TASK.encode(), related)
    assert bytes(renamed_in(Raw(text), ours)) == b'{"a":{ }}'
    more = b'{"_meta":{"%b":%b,"k":{ }}}' % (META_TASK.encode(), related)
    assert bytes(renamed_in(Raw(more), ours)) == b'{"_meta":{"k":{ }}}'


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"_meta":7}', b'{"_meta":"io.modelcontextprotocol/related-task"}']
)
def test_a_message_that_names_no_task_keeps_its_bytes(text: bytes) -> None:
    assert related_task(text) is None
    assert bytes(renamed_in(Raw(text), ours)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["task", THEIRS, META_TASK]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["task", "taskId", "_meta", META_TASK, "result", "resultType", "status", "ttl", "ttlMs"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(Era), st.sampled_from([TASKS_GET, TASKS_CANCEL, TASKS_RESULT]))
def test_no_message_breaks_it_and_no_id_of_the_other_side_is_left(value: Any, era: Era, method: str) -> None:
    raw = Raw(json.dumps(value).encode())
    made = read_made(raw, era)
    if isinstance(made, Made):
        assert json.loads(made.rename_task("ours", ours))
    related_task(raw)
    answer = renamed_answer(raw, method, THEIRS, ours)
    if not isinstance(answer, str):
        said: Any = json.loads(encode_value(answer))
        assert said.get("taskId") != THEIRS or method == TASKS_RESULT
        meta = said.get("_meta")
        related = meta.get(META_TASK) if isinstance(meta, dict) else None
        assert not (isinstance(related, dict) and related.get("taskId") == THEIRS)


# Who offers, who takes


@pytest.mark.parametrize(
    ("era", "capabilities", "offers"),
    [
        (Era.LEGACY, {"tasks": {"requests": {"tools": {"call": {}}}}}, True),
        (Era.LEGACY, {"tasks": {"list": {}, "cancel": {}}}, False),
        (Era.LEGACY, {"tasks": {"requests": {"tools": {"call": None}}}}, False),
        (Era.LEGACY, {"tasks": True}, False),
        (Era.LEGACY, {"extensions": {"io.modelcontextprotocol/tasks": {}}}, False),
        (Era.MODERN, {"extensions": {"io.modelcontextprotocol/tasks": {}}}, True),
        (Era.MODERN, {"extensions": {"io.modelcontextprotocol/tasks": None}}, False),
        (Era.MODERN, {"extensions": []}, False),
        (Era.MODERN, {"tasks": {"requests": {"tools": {"call": {}}}}}, False),
    ],
)
def test_a_server_offers_tasks_in_the_words_of_its_era(era: Era, capabilities: Any, offers: bool) -> None:
    assert tasks.offers_tasks(decode_object(json.dumps(capabilities).encode()) or {}, era) is offers


@pytest.mark.parametrize(
    ("said", "declares"),
    [
        ({"extensions": {"io.modelcontextprotocol/tasks": {}}}, True),
        ({"extensions": {"io.modelcontextprotocol/tasks": {"x": 1}}}, True),
        ({"extensions": {"io.modelcontextprotocol/tasks": False}}, False),
        ({"experimental": {"io.modelcontextprotocol/tasks": {}}}, False),
        ({"extensions": "io.modelcontextprotocol/tasks"}, False),
        ({}, False),
    ],
)
def test_a_client_takes_tasks_where_it_declares_the_extension(said: Any, declares: bool) -> None:
    assert tasks.declares_tasks(Raw(json.dumps(said).encode())) is declares


def test_a_legacy_client_is_asked_as_a_task_only_what_it_says() -> None:
    capabilities = decode_object(b'{"tasks":{"requests":{"sampling":{"createMessage":{}}}}}') or {}
    assert tasks.takes_as_task(capabilities, "sampling/createMessage")
    for method in ("elicitation/create", "roots/list", "tools/call", ""):
        assert not tasks.takes_as_task(capabilities, method)


# Refusals


@pytest.mark.parametrize("era", Era)
def test_a_refusal_across_eras_names_both(era: Era) -> None:
    for refusal in (tasks.tool_across_eras(era), tasks.call_across_eras(era), tasks.task_across_eras(era)):
        assert refusal.details is not None
        assert refusal.details["reason"] == "task_across_eras"
        assert {refusal.details["client_era"], refusal.details["server_era"]} == {"legacy", "modern"}
        assert refusal.details["client_era"] == era.value
        assert "2025-11-25" in refusal.message
        assert "2026-07-28" in refusal.message
        assert complaints(LEGACY, "JSONRPCErrorResponse", encode_refusal(b"1", refusal)) == []
