"""The closed JSON Schemas of MCP-AQL answers, for tests."""

from interlock.aql.protocol.answer_schemas import check_answer, is_valid

__all__ = ["check_answer", "is_valid"]
