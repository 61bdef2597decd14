"""The gate: irreversible calls held until a person's proof arrives, then sent once."""
