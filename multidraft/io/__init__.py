"""Files that are written completely or not at all, JSON lines, and journals of long runs."""
