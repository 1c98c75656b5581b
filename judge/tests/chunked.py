"""A server whose streams have chunks of given sizes, and that says in one way or another how many tokens they have."""

import json
from typing import Any

import httpx2
from sampled import RecordedServer

OWNERS = {"usage": "vllm", "timings": "llamacpp", "logprobs": "someone", "nothing": "someone"}


class ChunkServer(RecordedServer):
    """Each prompt has its chunks; `says` is how the server counts tokens, `refused` a field that it does not take."""

    def __init__(self, sizes: dict[str, list[int]], says: str = "usage", refused: str = ""):
        super().__init__()
        self.sizes, self.says, self.refused = sizes, says, refused
        self.failing_after: int | None = None  # so many requests

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to a request."""
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "toy", "owned_by": OWNERS[self.says]}]})
        body = json.loads(request.content)
        if self.refused in body:
            return httpx2.Response(400, json={"error": {"message": f"no {self.refused} here"}})
        if len(self.bodies) == self.failing_after:
            return httpx2.Response(500, text="stopped")
        self.bodies.append(body)
        events = self.events(self.sizes[body["prompt"]], body)
        return httpx2.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))

    def events(self, sizes: list[int], body: dict[str, Any]) -> list[dict[str, Any]]:
        """One event a chunk, without a text where it has no token; llama.cpp's, one a token; and one at the end."""
        events, total = list[dict[str, Any]](), 0
        for step, size in enumerate(sizes, 1):
            parts = [1] * size if self.says == "timings" else [size]
            for part in parts:
                total += part
                event: dict[str, Any] = {"choices": [{"index": 0, "text": "x" * part, "logprobs": None}]}
                if self.says == "usage":
                    event["usage"] = {"completion_tokens": total}
                if self.says == "timings":
                    event["timings"] = {"predicted_n": total, "predicted_ms": 1.5 * step}
                if self.says == "logprobs" and "logprobs" in body:
                    event["choices"][0]["logprobs"] = {"tokens": ["x"] * part, "token_logprobs": [-1.0] * part}
                events.append(event)
        end: dict[str, Any] = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
        return [*events, end, {"choices": [], "usage": {"completion_tokens": total}}]
