"""Studies: one file a table or figure, each behind a command."""
