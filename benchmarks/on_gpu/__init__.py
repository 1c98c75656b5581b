"""The pieces of `gpu.py`: each measures one thing, in less than ten minutes, and returns lines for a table."""
