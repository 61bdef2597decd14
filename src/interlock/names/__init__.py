"""The registry of tool surface names of this node: its log, requests and decisions, changes by controllers,
publication.
"""
