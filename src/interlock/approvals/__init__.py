"""The inbox: approvals of every kind, their storage, decisions, feed, notifications and views."""
