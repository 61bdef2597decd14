"""The times a node keeps to that tests shorten: names for `settings` of `running_node`, see `tests.preloaded`."""

BACKOFF_MAX_S = "interlock.links.keeper:BACKOFF_MAX_S"
CONFIGURATION_LOOK_S = "interlock.node.reload:LOOK_S"
DEVICE_REOPEN_S = "interlock.devices.session:REOPEN_S"
DEVICE_SETTLE_S = "interlock.devices.session:SETTLE_S"
DRIVERS_LOOK_S = "interlock.drivers.registry.service:LOOK_S"
EXECUTIONS_FLUSH_S = "interlock.safety.loop:FLUSH_S"
FETCH_S = "interlock.net.fetch:FETCH_S"
CREDENTIALS_LOOK_MS = "interlock.ax.memberships:HEARTBEAT_MS"
FLOOD_REST_S = "interlock.devices.transports.mqtt:FLOOD_REST_S"
HEARTBEAT_MS = "interlock.ax.parents.parents:HEARTBEAT_MS"
HOOK_S = "interlock.drivers.provider.hooks:HOOK_S"
INPUT_GRACE_S = "interlock.process.child:INPUT_GRACE_S"
LOG_REPEAT_S = "interlock.cli.terminal.log:REPEAT_S"  # tests count the lines of the log
PUBLIC_SWEEP_S = "interlock.node.endpoints:SWEEP_S"
READY_S = "interlock.node.main:READY_S"
REGISTER_WITHIN_S = "interlock.ax.connection:REGISTER_WITHIN_S"
RESPAWN_WAIT_S = "interlock.dispatch.dispatch:RESPAWN_WAIT_S"
SCRYPT_N = (
    "interlock.crypto.keys.encrypted_pem:SCRYPT_N"  # half a second for each signature with a key under a passphrase
)
TERM_GRACE_S = "interlock.process.child:TERM_GRACE_S"
