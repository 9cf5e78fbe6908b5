"""The command line: `laneway serve | bench | openapi | version`, and what backends add."""
