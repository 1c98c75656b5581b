"""What else can draft: n-grams, looking up, the first layers of the target, several models at once."""
