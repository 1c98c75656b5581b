"""llama.cpp and its fork below `GGUF`, by their low-level interfaces: file, weights, memory, rows, tokenizer."""

IK_LLAMA_CPP, LLAMA_CPP = LIBRARIES = "ik_llama.cpp", "llama.cpp"
