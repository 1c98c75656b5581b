"""The embedded pair: a small target and a smaller draft in Hugging Face format, and the recipe that trained them."""
