"""Configuration: what a person writes in interlock.toml, checked key by key and compiled into one `Plan`."""
