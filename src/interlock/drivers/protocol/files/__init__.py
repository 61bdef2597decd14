"""Reading and writing DRIVER.md, TOOL.md, SECRETS.md and server.json, with every problem at its line."""
