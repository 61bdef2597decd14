"""Nodes of these tests run in this process, and end when they are told to."""

from tests import prompt_server

prompt_server.install()
