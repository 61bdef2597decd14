"""Driver folders on disk: scanning, reading, trust records, tamper checks."""
