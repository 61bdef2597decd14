"""Sandboxes of spawned servers: what a SandboxPlan says becomes a bubblewrap sandbox, or a named refusal to start.

`mounts` says which paths the server sees, `link_roots` where links on the way may lead, `mount_check` whether that is
what was mounted, `program_files` what its program needs to run, `server_programs` what no other may write,
`bubblewrap` how the tool is called, `seccomp` what the kernel refuses, `limits` ends what uses too much, `sandbox` puts
one start together and keeps what it needs while it runs.
"""
