"""What the runtime stands on: clock, audit recorder, node identity, link states, start errors."""
