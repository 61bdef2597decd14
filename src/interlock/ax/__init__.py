"""Aggregators and subservers registered here: connections, memberships, ownership, health."""
