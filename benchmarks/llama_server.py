"""llama.cpp's server as the package xllamacpp holds it, which comes built: python llama_server.py PORT FILE DRAFTS.

DRAFTS is none, ngram (look-ups: the latest occurrence of --looked-up tokens, drafts of up to --drafted) or model (the
file itself drafts, with `probabilistic` from its distribution).

    python llama_server.py 8001 qwen.gguf ngram --looked-up 12 --drafted 48 --slots 1 --context 4096 --threads 2
"""

import argparse
import time

import xllamacpp


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
    return parser.parse_args()


def settings(options: argparse.Namespace) -> "xllamacpp.CommonParams":
    """What the server is started with."""
    port, path, drafts = options.port, options.path, options.drafts
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.port = path, {"judged"}, port
    params.n_parallel, params.n_ctx = options.slots, options.slots * options.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
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
    server = xllamacpp.Server(settings(arguments()))
    while True:
        time.sleep(1)
