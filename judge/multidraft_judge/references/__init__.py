"""What else knows the model's law: another server, or a model in this process."""
