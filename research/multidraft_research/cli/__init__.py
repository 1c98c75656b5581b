"""The commands that research adds to the command line."""
