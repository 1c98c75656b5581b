"""Files: written whole or not at all, JSON lines, journals of long runs."""
