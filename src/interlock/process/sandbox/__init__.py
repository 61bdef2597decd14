"""Sandboxes of spawned servers: a SandboxPlan becomes a bubblewrap sandbox, or a named refusal to start.

`host_paths` finds what a program needs to run and which paths are protected, `mounts` decides what the server sees,
checks that this is what was mounted, and knows the tool bubblewrap and its options, `sandbox` puts one start together
and keeps what it needs while it runs.
"""
