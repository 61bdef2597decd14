"""The inbox: approvals of every kind, with their storage, decisions, change feed, notifications and views."""
