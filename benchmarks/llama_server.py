"""llama.cpp's server as the package xllamacpp holds it, which comes built: python llama_server.py PORT FILE DRAFTS.

DRAFTS is none, ngram (look-ups) or model (the file itself drafts, with `probabilistic` from its distribution).
"""

import sys
import time

import xllamacpp

SLOTS, CONTEXT = 16, 1024  # requests at once, and tokens of each
LOOKED_UP, DRAFTED = 2, 4  # tokens that have to agree, and tokens of a draft


def settings(port: int, path: str, drafts: str) -> "xllamacpp.CommonParams":
    """What the server is started with."""
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.port = path, {"judged"}, port
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    kinds, speculative = xllamacpp.common_speculative_type, params.speculative
    if drafts == "ngram":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = LOOKED_UP, DRAFTED
    elif drafts != "none":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path, speculative.draft.n_max = path, DRAFTED
        speculative.draft.probabilistic = drafts == "probabilistic"
    return params


if __name__ == "__main__":
    server = xllamacpp.Server(settings(int(sys.argv[1]), *sys.argv[2:]))
    while True:
        time.sleep(1)
