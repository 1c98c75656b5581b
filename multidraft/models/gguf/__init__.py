"""llama.cpp below `GGUF`, by its low-level interface: the file, the weights, the memory, rows, the tokenizer."""
