"""The times a node keeps to that tests shorten: names for `settings` of `running_node`, see `tests.preloaded`."""

BACKOFF_MAX_S = "interlock.runtime.links.keeper:BACKOFF_MAX_S"
CONFIGURATION_LOOK_S = "interlock.runtime.node.reload:LOOK_S"
DEVICE_REOPEN_S = "interlock.runtime.devices.session:REOPEN_S"
DRIVERS_LOOK_S = "interlock.runtime.drivers.registry.service:LOOK_S"
EXECUTIONS_FLUSH_S = "interlock.runtime.safety.loop:FLUSH_S"
FETCH_S = "interlock.net.fetch:FETCH_S"
CREDENTIALS_LOOK_MS = "interlock.runtime.ax.memberships:HEARTBEAT_MS"
HEARTBEAT_MS = "interlock.runtime.parents.parents:HEARTBEAT_MS"
HOOK_S = "interlock.runtime.drivers.provider.hook_process:HOOK_S"
INPUT_GRACE_S = "interlock.process.child:INPUT_GRACE_S"
LOG_REPEAT_S = "interlock.surface.cli.terminal.log:REPEAT_S"  # tests count the lines of the log
PUBLIC_SWEEP_S = "interlock.runtime.node.endpoints:SWEEP_S"
READY_S = "interlock.runtime.node.main:READY_S"
REGISTER_WITHIN_S = "interlock.runtime.ax.connection:REGISTER_WITHIN_S"
RESPAWN_WAIT_S = "interlock.runtime.dispatch.sender:RESPAWN_WAIT_S"
SCRYPT_N = "interlock.keys.encrypted_pem:SCRYPT_N"  # half a second for each signature with a key under a passphrase
TERM_GRACE_S = "interlock.process.child:TERM_GRACE_S"
