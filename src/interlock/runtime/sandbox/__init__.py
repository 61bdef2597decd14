"""Sandboxes of spawned servers: what a SandboxPlan says becomes a bubblewrap sandbox, or a named refusal to start.

`view` says which paths the server sees, `programs` what its program needs to run, `bubblewrap` how the tool is called,
`seccomp` what the kernel refuses, `limits` ends what uses too much, `cells` puts one start together and keeps what it
needs while it runs.
"""
