"""Judgements about network addresses and egress rules."""
