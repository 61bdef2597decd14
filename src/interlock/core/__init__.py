"""Values and services that all of the runtime uses: clock, audit recorder, node identity, link states, start errors."""
