"""Models as the decoding loop reads them: Hugging Face, GGUF, counts, tables, and several as one."""
