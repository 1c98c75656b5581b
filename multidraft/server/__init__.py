"""An OpenAI-compatible server: the engine thread, the API, its numbers for Prometheus, a page to look at."""
