"""The public way in: inputs and options checked with advice, rows, the Hugging Face signature."""
