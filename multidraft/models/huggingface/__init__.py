"""Hugging Face models as readers: trees by masks (`masks.py`) or path by path (`paths.py`), over a view of a model."""
