"""The embedded pair: a small target and a smaller draft in Hugging Face format, and the recipe that trained them."""

from multidraft.zoo.pair import Pair, load_pair

__all__ = ["Pair", "load_pair"]
