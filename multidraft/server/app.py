"""The app: which address is answered by what."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, Response

from multidraft.errors import AdviceError
from multidraft.server import faults
from multidraft.server.answering import Answering
from multidraft.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from multidraft.server.formats import Chat, Completion
from multidraft.server.limited import Limited
from multidraft.server.replies import reply
from multidraft.server.service import Service

PAGE = Path(__file__).parent / "page.html"
DEFAULT_NEW_TOKENS = 16  # of a completion that names no number, as in OpenAI's API


def build(service: Service) -> FastAPI:
    """The app over a service, whose engine it starts and closes."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        service.engine.close(service.limits.drain)

    app = FastAPI(
        title="multidraft",
        version=version("multidraft"),
        lifespan=life,
        docs_url=None,  # these pages would fetch their scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Limited, most=service.limits.body)
    faults.add_to(app)
    add_models(app, service)
    add_answers(app, service)
    add_tokens(app, service)
    add_state(app, service)
    return app


def keyed(service: Service) -> Any:
    """What lets only those in who know the key, if there is one."""

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if service.api_key is not None and not secrets.compare_digest(given, service.api_key.encode()):
            raise HTTPException(401, "the API key is missing or wrong; send it as a bearer token")

    return Depends(check)


def add_models(app: FastAPI, service: Service) -> None:
    """Which models there are: one."""
    began = int(time.time())

    def model() -> dict[str, Any]:
        card = {"id": service.name, "object": "model", "created": began, "owned_by": "multidraft"}
        return card | {"root": service.name, "max_model_len": service.context}

    @app.get("/v1/models", dependencies=[keyed(service)])
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [model()]}

    @app.get("/v1/models/{name:path}", dependencies=[keyed(service)])
    def one_model(name: str) -> dict[str, Any]:
        check_name(service, name)
        return model()


def check_name(service: Service, name: str) -> None:
    """Raise unless it is the model that is served."""
    if name != service.name:
        raise HTTPException(404, f"the model {name[:100]!r} does not exist; this server has {service.name!r}")


def add_answers(app: FastAPI, service: Service) -> None:
    """What generates."""

    @app.post("/v1/completions", dependencies=[keyed(service)])
    async def completions(body: CompletionBody, request: Request) -> Response:
        check_name(service, body.model)
        new_tokens = DEFAULT_NEW_TOKENS if body.max_tokens is None else body.max_tokens
        if not new_tokens and not body.echo:
            raise AdviceError("max_tokens is 0, which only a prompt that is echoed makes sense with; ask for more")
        return await reply(request, Completion(Answering(service, body, service.prompts(body), new_tokens)))

    @app.post("/v1/chat/completions", dependencies=[keyed(service)])
    async def chat(body: ChatBody, request: Request) -> Response:
        check_name(service, body.model)
        new_tokens = body.max_completion_tokens or body.max_tokens or service.limits.default_new_tokens
        return await reply(request, Chat(Answering(service, body, [service.conversation(body)], new_tokens)))


def add_tokens(app: FastAPI, service: Service) -> None:
    """The tokenizer."""
    tokenizer: Any = service.tokenizer

    @app.post("/tokenize", dependencies=[keyed(service)])
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        if (body.prompt is None) == (body.messages is None):
            raise AdviceError("give either a prompt or messages")
        if body.messages is not None:
            tokens = service.written(body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            tokens = service.encode(body.prompt or "", body.add_special_tokens)
        words = tokenizer.convert_ids_to_tokens(tokens) if body.return_token_strs else None
        return {"count": len(tokens), "max_model_len": service.context, "tokens": tokens, "token_strs": words}

    @app.post("/detokenize", dependencies=[keyed(service)])
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        if strange := [token for token in body.tokens if token >= service.vocabulary]:
            raise AdviceError(f"token {strange[0]} is beyond the vocabulary, 0 to {service.vocabulary - 1}")
        return {"prompt": tokenizer.decode(body.tokens, clean_up_tokenization_spaces=False)}

    @app.get("/tokenizer_info", dependencies=[keyed(service)])
    def tokenizer_info() -> dict[str, Any]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        known = {name: getattr(tokenizer, name, None) for name in names} | {"chat_template": service.template}
        return {"tokenizer_class": type(tokenizer).__name__, "max_model_len": service.context} | known


def add_state(app: FastAPI, service: Service) -> None:
    """How the server is, and a page to look at."""

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if service.engine.alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return FileResponse(PAGE, media_type="text/html")
