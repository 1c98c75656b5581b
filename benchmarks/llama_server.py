"""llama.cpp's server as the package xllamacpp holds it, which comes built: python llama_server.py PORT FILE DRAFTS.

DRAFTS is none, ngram (look-ups: the latest occurrence of --looked-up tokens, drafts of up to --drafted) or model (the
file itself drafts, with `probabilistic` from its distribution).

    python llama_server.py 8001 qwen.gguf ngram --looked-up 12 --drafted 48 --slots 1 --context 4096 --threads 2

On a GPU with --backend, a file such as the libggml-cuda.so of npm's node-llama-cpp, which has to be of about the age of
the package (version 2026.9 for 3.21.1).
"""

import argparse
import ctypes
import sys
import time

import xllamacpp

ALL_LAYERS = 999  # as many as there are


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("drafts", choices=("none", "ngram", "model", "probabilistic"))
    parser.add_argument("--slots", type=int, default=16, help="requests at once")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--looked-up", type=int, default=2, help="tokens that have to agree")
    parser.add_argument("--drafted", type=int, default=4, help="tokens of a draft")
    parser.add_argument("--backend", help="a file of ggml's for a GPU, which then computes all layers")
    return parser.parse_args()


def load_backend(file: str) -> None:
    """Let the package's copy of ggml compute with a GPU, or end."""
    own_library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    own_library.ggml_backend_load.restype = ctypes.c_void_p
    if not own_library.ggml_backend_load(file.encode()):
        sys.exit(f"llama_server.py: {file} cannot be used here; its version has to fit that of xllamacpp")


def settings(options: argparse.Namespace) -> "xllamacpp.CommonParams":
    """What the server is started with."""
    port, path, drafts = options.port, options.path, options.drafts
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.port = path, {"judged"}, port
    params.n_parallel, params.n_ctx = options.slots, options.slots * options.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_gpu_layers = ALL_LAYERS if options.backend else params.n_gpu_layers
    kinds, speculative = xllamacpp.common_speculative_type, params.speculative
    if drafts == "ngram":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = options.looked_up, options.drafted
    elif drafts != "none":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path, speculative.draft.n_max = path, options.drafted
        if drafts == "probabilistic":  # which versions before October 2026 do not have
            speculative.draft.probabilistic = True
    return params


if __name__ == "__main__":
    options = arguments()
    if options.backend:
        load_backend(options.backend)
    server = xllamacpp.Server(settings(options))
    while True:
        time.sleep(1)
