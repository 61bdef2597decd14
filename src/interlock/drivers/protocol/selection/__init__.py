"""Which driver serves a contract and with which secrets: resolver, compatibility, history, access, redaction."""
