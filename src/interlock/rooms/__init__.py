"""Rooms: topics on which agents, people and robots share one order of envelopes (MCPx v0.1).

An envelope is judged, stored, and then delivered, in this order; nothing else publishes.
"""
