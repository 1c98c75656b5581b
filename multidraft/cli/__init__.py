"""One command a file; torch and transformers are imported only when a command runs."""
