"""What a generation drew and decided: recorded, kept in a file, replayed."""
