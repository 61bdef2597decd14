"""Text for the terminal: tables and paragraphs made from the operator API's values."""
