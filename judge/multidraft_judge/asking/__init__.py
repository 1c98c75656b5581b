"""How a subject is asked: which requests, by which client, and how its answers are read."""
