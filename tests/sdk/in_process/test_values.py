"""Values of an adapter: dates, numbers, binary data and null, in both directions (4.7)."""

import base64
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest
from msgspec import Meta
from tests.sdk.aql_library import Library

from interlock.sdk.aql import Adapter, DeclarationInvalid
from interlock.sdk.aql.service import Service
from interlock.sdk.aql.values import plain


@pytest.mark.req("AQL-4.7.2-1")
@pytest.mark.parametrize("day", ["2026-02-04"])
@pytest.mark.parametrize(
    ("at", "told"),
    [
        ("2026-02-04T10:30:00Z", "2026-02-04T10:30:00Z"),
        ("2026-02-04T10:30:00+05:30", "2026-02-04T05:00:00Z"),
        ("2026-02-04T10:30:00.25+05:30", "2026-02-04T05:00:00.250000Z"),
    ],
)
def test_dates_are_iso_8601(day: str, at: str, told: str) -> None:
    library = Library()
    data = library.ask("read", "get_day", params={"day": day, "at": at})["data"]
    assert {name: one["format"] for name, one in library.parameters("get_day").items() if "format" in one} == {
        "day": "date",
        "at": "date-time",
    }
    assert data["day"] == day
    assert data["at"] == told


@pytest.mark.req("AQL-4.7.2-1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("day", "04.02.2026"),
        ("day", "2026-13-40"),
        ("at", "2026-02-04 10:30:00Z"),
        ("at", "2026-02-04T10:30:00"),
        ("at", "2026-02-30T10:30:00Z"),
        ("at", "1770200000"),
        ("at", 1770200000),
        ("day", 1770200000),
    ],
)
def test_other_dates_are_refused(name: str, value: str | int) -> None:
    error = Library().ask("read", "get_day", params={name: value})["error"]
    assert error["code"] == ("VALIDATION_INVALID_TYPE" if isinstance(value, int) else "VALIDATION_INVALID_VALUE")
    assert error["details"]["param_name"] == name
    assert error["details"].get("expected_type", "string") == "string"


def test_a_number_is_no_date() -> None:
    assert Library().ask("read", "get_day", params={"at": 1770201000})["error"]["code"] == "VALIDATION_INVALID_TYPE"


@pytest.mark.req("AQL-4.7.2-2", "AQL-4.7.2-3")
def test_times_are_shown_in_utc_and_a_time_without_a_zone_is_a_program_error() -> None:
    assert plain(datetime(2026, 2, 4, 12, tzinfo=timezone(timedelta(hours=2)))) == "2026-02-04T10:00:00Z"
    with pytest.raises(TypeError, match="without a time zone"):
        plain(datetime(2026, 2, 4, 12))
    day = Library().parameters("get_day")["day"]
    assert (day["type"], day["format"], "UTC" in day["description"]) == ("string", "date", True)
    assert plain(datetime(2026, 2, 4, tzinfo=UTC)) == "2026-02-04T00:00:00Z"


@pytest.mark.req("AQL-4.7.3-1")
async def test_integers_are_safe_or_texts() -> None:
    library = Library()
    assert (await library.call("read", "get_number", params={"count": 2**53 - 1}))["data"]["count"] == 2**53 - 1
    error = (await library.call("read", "get_number", params={"count": 2**53}))["error"]
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert error["details"]["expected_type"] == "string"
    nested = (await library.call("read", "get_value", params={"value": {"deep": [2**60]}}))["error"]
    assert nested["details"]["param_name"] == "value.deep.0"
    for word in ("NaN", "Infinity"):
        found, _ = await library.send("read", f'{{"operation":"get_number","params":{{"ratio":{word}}}}}')
        assert not found["success"]


@pytest.mark.req("AQL-4.7.3-2", "AQL-4.7.3-3", "AQL-4.7.4-1")
async def test_values_without_a_json_form_are_text_with_their_type() -> None:
    library = Library()
    box = (await library.call("read", "get_box"))["data"]
    assert box == {
        "made": "2026-02-04T10:30:00Z",
        "count": str(2**60),
        "count_type": "bigint",
        "price": "1.10",
        "price_type": "decimal",
        "raw_content": "AAE=",
        "raw_encoding": "base64",
        "raw_mime_type": "application/octet-stream",
    }
    big = (await library.call("read", "introspect", params={"query": "operations", "name": "get_number"}))["data"]
    (shown,) = (parameter for parameter in big["operation"]["parameters"] if parameter["name"] == "big")
    assert shown["type"] == "string"
    assert re.fullmatch(shown["pattern"], "-12") and not re.fullmatch(shown["pattern"], "1.5")
    assert "digits" in shown["description"]
    assert (await library.call("read", "get_number", params={"big": str(2**70)}))["data"]["big"] == str(2**70)
    assert (await library.call("read", "get_number", params={"big": "1.5"}))["error"][
        "code"
    ] == "VALIDATION_INVALID_VALUE"
    assert plain({"a": Decimal("0.10")}) == {"a": "0.10", "a_type": "decimal"}


@pytest.mark.req("AQL-4.7.4-1")
@pytest.mark.parametrize("content", ["aGVsbG8", "aGVs bG8=", "_-8=", "a"])
def test_binary_data_is_base64_with_padding(content: str) -> None:
    library = Library()
    names = list(library.parameters("create_file"))
    assert names == ["file_content", "file_encoding", "file_mime_type"]
    encoding = library.parameters("create_file")["file_encoding"]
    assert (encoding["type"], encoding["enum"], encoding["default"]) == ("string", ["base64"], "base64")
    good = base64.b64encode(b"hello").decode()
    data = library.ask("create", "create_file", params={"file_content": good, "file_mime_type": "text/plain"})["data"]
    assert data["size"] == 5
    assert (data["copy_content"], data["copy_encoding"], data["copy_mime_type"]) == (good, "base64", "text/plain")
    assert library.ask("create", "create_file", params={"file_content": content})["error"]["code"] == (
        "VALIDATION_INVALID_VALUE"
    )


@pytest.mark.req("AQL-4.7.1-3")
def test_nul_is_only_in_a_parameter_that_is_declared_to_take_it() -> None:
    library = Library()

    @library.adapter.read
    def get_pair(raw: Annotated[str, Meta(extra_json_schema={"allow_nul": True})] = "", text: str = "") -> str:
        """Both."""
        return raw + text

    library.service = Service(library.adapter)
    assert library.ask("read", "get_pair", params={"raw": "a\x00"})["data"] == "a\x00"
    assert library.ask("read", "get_pair", params={"text": "\\u0000"})["data"] == "\\u0000"
    for entry in ({"text": "a\x00"}, {"raw": "a\x00", "text": "\\\x00"}):
        assert library.ask("read", "get_pair", params=entry)["error"]["code"] == "VALIDATION_INVALID_ENCODING"
    shown = library.parameters("get_pair")
    assert ("U+0000" in shown["raw"]["description"], "description" in shown["text"]) == (True, False)


@pytest.mark.req("AQL-4.7.6-1", "AQL-4.7.6-2")
def test_a_handler_can_tell_absent_from_null() -> None:
    library = Library()

    def was(**params: Any) -> str:
        return str(library.ask("read", "get_note", params=params)["data"]["was"])

    assert (was(), was(text=None), was(text="x")) == ("absent", "null", "given")
    shown = library.parameters("get_note")["text"]
    assert shown["type"] == "string | null"
    assert "null" in shown["description"]
    assert library.ask("read", "get_user", params={"user_id": None})["error"]["code"] == "VALIDATION_INVALID_TYPE"
    assert library.ask("read", "get_value", params={"value": {"a": None}})["data"] == {"a": None}
    with pytest.raises(DeclarationInvalid, match="must say what null does"):

        @Adapter("x").read
        def get_thing(name: str | None) -> None:
            """One."""


@pytest.mark.req("AQL-4.7.5-1", "AQL-4.7.5-7")
async def test_an_answer_beyond_the_limit_says_that_the_operation_ran() -> None:
    library = Library()
    half = "x" * (1024 * 1024 - 100)
    many = [{"operation": "get_value", "params": {"value": half}}]
    assert (await library.call("read", operations=many))["success"] is True
    found, _ = await library.send("read", b'{"operation":"get_value","params":{"value":"%b"}}' % (b"x" * (1 << 20)))
    assert found["error"]["code"] == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert found["error"]["details"]["limit_type"] == "request_size"


def test_an_enum_is_given_as_its_member() -> None:
    library = Library()
    assert library.ask("read", "get_day", params={"colour": "red"})["data"]["colour"] == "RED"
    assert library.ask("read", "get_day", params={"colour": "green"})["error"]["code"] == "VALIDATION_INVALID_VALUE"
