"""Sandboxes of spawned servers: what a SandboxPlan says becomes a bubblewrap sandbox, or a named refusal to start.

`mounts` says which paths the server sees, `link_roots` where links on the way may lead, `program_files` what its
program needs to run, `bubblewrap` how the tool is called, `seccomp` what the kernel refuses, `limits` ends what uses
too much, `sandbox` puts one start together and keeps what it needs while it runs.
"""
