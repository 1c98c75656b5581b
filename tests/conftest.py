"""What others have made is imported before the hook that checks our type hints.

Whatever is first imported while the hook imports a module of ours would be compiled anew, in every process.
"""

import scipy.stats  # noqa: F401
from transformers import (  # noqa: F401
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
)
