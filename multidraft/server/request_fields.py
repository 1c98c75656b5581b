"""One table of request fields: every one of OpenAI, vLLM, SGLang and llama.cpp, and what becomes of it here.

A field is honoured, or has another name here, or is refused by name with the reason, or is ignored, which the response
header `x-ignored-fields` says; so are fields that nobody knows. docs/serving.md prints the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from multidraft.errors import AdviceError

Fate = Literal["honoured", "renamed", "refused", "ignored"]
Route = Literal["completions", "chat", "responses"]
ADDRESSES: dict[Route, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
OFF_VALUES: tuple[Any, ...] = (None, False, "", [], {}, 0)  # values that ask for nothing
IGNORED_HEADER = "x-ignored-fields"
MAX_HEADER_NAMES, MAX_NAME_CHARACTERS = 64, 64

HONOURED: dict[str, dict[str, str]] = {  # by routes, then by names
    "completions chat responses": {
        "model": "one of the served names; required, as by OpenAI",
        "temperature top_p top_k min_p typical_p top_n_sigma": "[settings]"
        "(generate.md#fields-of-generationconfig); a `temperature` of 0 is greedy, and for `top_k` both 0 "
        "and -1 are off",
        "presence_penalty frequency_penalty repetition_penalty": "the first two count new tokens, the last one also "
        "those of the prompt",
        "logit_bias": "by token id, also as llama.cpp's list of pairs, in which `false` forbids a token",
        "seed": "the same answer again; -1 is a new one each time",
        "stop stop_token_ids": "end an answer",
        "include_stop_str_in_output": "shows the stop string, too",
        "min_tokens ignore_eos": "until there are so many tokens neither an end token nor a stop string ends an answer",
        "stream": "events",
        "structured_outputs guided_json guided_regex guided_choice guided_grammar": "vLLM's forms of an answer",
        "regex ebnf json_schema grammar": "SGLang's and llama.cpp's; `grammar` and `ebnf` are GBNF, or Lark",
    },
    "completions chat": {
        "multidraft": "draft statistics in every event",
        "max_tokens": "new tokens; -1 for all the room that is left",
        "n best_of": "answers for each prompt; both must be the same",
        "stream_options": "`include_usage`, `continuous_usage_stats`",
        "logprobs": "of completions a number, of chats true",
        "response_format": "`json_schema`, `json_object` (with llama.cpp's `schema`, too) or `text`",
        "add_special_tokens": "whether a tokenizer adds its own, such as BOS; default: true for completions, false for "
        "chats, whose template has them",
        "truncate_prompt_tokens truncation_side": "keeps so many of a prompt's last tokens (of its first ones, with "
        "`right`); -1 for as many as fit",
    },
    "completions": {
        "prompt": "text, tokens, or lists of either",
        "echo": "the prompt comes with the answer; with `logprobs` it is scored",
        "return_token_ids": "`token_ids` and `prompt_token_ids`, as vLLM's",
    },
    "chat": {
        "messages": "a conversation",
        "max_completion_tokens": "new tokens",
        "top_logprobs": "a number, beside `logprobs`",
        "tools tool_choice parallel_tool_calls": "functions that an answer may call",
        "chat_template_kwargs": "settings for the template",
        "reasoning_effort": "for templates that read it, else ignored; `none` also sets `enable_thinking` to false",
        "documents": "for templates that read them, else refused",
        "add_generation_prompt": "false: the prompt ends with the last message",
        "continue_final_message": "the answer goes on with the last message",
    },
    "responses": {
        "input instructions": "a text or messages",
        "max_output_tokens": "new tokens",
        "text": "`format`",
        "metadata": "is repeated in the answer",
    },
}
RENAMED = {  # by what they are called here
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "no_stop_trim": "include_stop_str_in_output",
    "n_cmpl": "n",
    "n_probs": "logprobs",
}
REFUSED = {
    "suffix input_prefix input_suffix input_extra": "text is continued, not filled in",
    "use_beam_search": "beam search has no distribution",
    "bad_words allowed_token_ids": "use logit_bias",
    "logits_processors custom_logit_processor custom_params vllm_xargs": "the server runs no code of a client's",
    "chat_template": "the server has its own",
    "functions function_call": "use tools and tool_choice",
    "audio modalities web_search_options moderation image_data": "text is read and written, and nothing else",
    "verbosity": "say it in a message",
    "reasoning": "use reasoning_effort in /v1/chat/completions",
    "include_reasoning": "reasoning is a part of the text",
    "thinking_token_budget thinking_budget_tokens reasoning_budget reasoning_budget_tokens": "use max_tokens",
    "skip_special_tokens": "special tokens are never shown",
    "stop_regex repetition_detection": "use stop",
    "watermarking": "it would change the distribution",
    "mirostat xtc_probability dry_multiplier dynatemp_range adaptive_target tfs_z": "there is no such sampler here",
    "samplers": "the order is fixed",
    "repeat_last_n": "penalties count the whole text",
    "min_keep n_indent": "filters keep what they keep",
    "t_max_predict_ms": "the server has --request-timeout",
    "grammar_lazy grammar_triggers": "a grammar holds from the first token on",
    "guided_whitespace_pattern": "white space in JSON is fixed",
    "prompt_logprobs": "use echo and logprobs in /v1/completions",
    "logprob_token_ids": "use logprobs",
    "return_tokens return_tokens_as_token_ids return_prompt_token_ids return_prompt_text "
    "return_token_offsets": "use return_token_ids in /v1/completions, or /tokenize",
    "return_hidden_states return_routed_experts return_cached_tokens_details return_meta_info response_fields": (
        "an answer has no such part"
    ),
    "lora lora_path": "one model is served, without adapters",
    "session_params": "nothing is stored; send the whole prompt",
    "input_ids prompt_embeds": "use prompt in /v1/completions",
    "task": "say it in a message",
    "cache_salt": "the prefix cache is the same for all clients",
    "kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room": "one engine does all",
    "previous_response_id conversation context_management": "nothing is stored; send the whole conversation as input",
    "background": "an answer comes with its request",
    "include": "there is nothing more to include",
    "truncation": "a conversation that is too long is refused",
}
IGNORED = {
    "user safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options service_tier store request_id "
    "rid session_id extra_key custom_labels priority": "for others' accounts and queues; nothing is stored",
    "prediction ngram_corpus_id cache_prompt n_cache_reuse id_slot n_keep n_discard backend_sampling routed_dp_rank "
    "data_parallel_rank disagg_prefill_dp_rank speculative.n_max speculative.n_min speculative.p_min "
    "guided_decoding_backend": "changes no text",
    "stream_interval sse_ping_interval timings_per_token return_progress": "events come as steps do",
    "length_penalty": "of beam search",
    "mirostat_tau mirostat_eta xtc_threshold dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers "
    "dynatemp_exponent adaptive_decay": "of a sampler that is refused where it is on",
    "post_sampling_probs": "log-probabilities are always those after all settings",
    "spaces_between_special_tokens": "special tokens are not shown",
    "separate_reasoning stream_reasoning reasoning_format reasoning_control": "reasoning is a part of the text",
    "images_config max_dynamic_patch min_dynamic_patch use_audio_in_video mm_processor_kwargs media_io_kwargs "
    "return_mm_kwargs routed_experts_prompt_start routed_experts_start_len": "of what is refused where it is sent",
    "max_tool_calls": "of tools that a server runs",
}
ALSO_OFF: dict[str, tuple[Any, ...]] = {  # values that ask for nothing, beside OFF_VALUES
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),  # where there are no tools
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning": ({"effort": None},),
    "truncation": ("disabled",),
    "tfs_z": (1,),
    "adaptive_target": (-1,),
    "repeat_last_n": (-1,),
    "t_max_predict_ms": (-1,),
    "n": (1,),
    "best_of": (1,),
}
OFF: dict[str, tuple[Any, ...]] = {  # values that ask for nothing, in place of OFF_VALUES
    "skip_special_tokens": (None, True),
    "include_reasoning": (None, True),
    **dict.fromkeys(
        "thinking_token_budget thinking_budget_tokens reasoning_budget reasoning_budget_tokens".split(), (None, -1)
    ),
}
IGNORED_ELSEWHERE = ("stream_options", "parallel_tool_calls", "metadata")  # by routes that do not honour them
PENALTIES = {"repetition_penalty": 1, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


@dataclass(frozen=True)
class RequestField:
    """What becomes of a field: what it does, why it is refused, or what it is called here."""

    fate: Fate
    about: str
    routes: tuple[Route, ...] = tuple(ADDRESSES)  # that honour it


def honoured_fields() -> dict[str, RequestField]:
    """The fields that are honoured, by name."""
    return {
        name: RequestField("honoured", about, tuple(route for route in ADDRESSES if route in routes.split()))
        for routes, groups in HONOURED.items()
        for names, about in groups.items()
        for name in names.split()
    }


def renamed_fields(honoured: Mapping[str, RequestField]) -> dict[str, RequestField]:
    """The fields that have another name here, by name."""
    return {name: RequestField("renamed", ours, honoured[ours].routes) for name, ours in RENAMED.items()}


def fields_of(fate: Fate, groups: Mapping[str, str]) -> dict[str, RequestField]:
    """The fields of one fate, by name."""
    return {name: RequestField(fate, about) for names, about in groups.items() for name in names.split()}


FIELDS: dict[str, RequestField] = {
    **honoured_fields(),
    **renamed_fields(honoured_fields()),
    **fields_of("refused", REFUSED),
    **fields_of("ignored", IGNORED),
}


def with_our_names(body: Mapping[str, Any], route: Route) -> dict[str, Any]:
    """A body in which fields have the names that they have here; raises AdviceError where two of them disagree."""
    changed = dict(body)
    for name, ours in RENAMED.items():
        value = changed.pop(name, None)
        if value is None or (name == "n_probs" and not value):
            continue
        given = {"logprobs": True, "top_logprobs": value} if (name, route) == ("n_probs", "chat") else {ours: value}
        for other, number in given.items():
            if changed.get(other) not in (None, number):
                raise AdviceError(f"{name} and {other} are the same here; leave one of them out")
        changed |= given
    return changed


def ignored_fields(given: Mapping[str, Any], route: Route) -> list[str]:
    """The names of fields that have no effect; raises AdviceError on one that is refused."""
    ignored = list[str]()
    for name, value in given.items():
        field = FIELDS.get(name)
        if asks_for_nothing(name, value, given) or (
            field and field.fate in ("honoured", "renamed") and route in field.routes
        ):
            continue
        if field is None or field.fate == "ignored" or name in IGNORED_ELSEWHERE:
            ignored.append(name)
        else:
            addresses = " and ".join(ADDRESSES[other] for other in field.routes)
            reason = field.about if field.fate == "refused" else f"it is for {addresses}"
            raise AdviceError(
                f"{name} is not supported{'' if field.fate == 'refused' else ' here'}: {reason}; leave it out"
            )
    return ignored


def asks_for_nothing(name: str, value: Any, given: Mapping[str, Any]) -> bool:
    """Whether a field's value is that of leaving it out; a field that nobody knows may be a misspelt one."""
    if name not in FIELDS:
        return value is None
    if name == "repeat_last_n" and all(given.get(other) in (None, off) for other, off in PENALTIES.items()):
        return True
    return value in OFF.get(name, (*OFF_VALUES, *ALSO_OFF.get(name, ())))


def header_of(names: list[str]) -> str:
    """The names as the value of a header; what may not stand there is encoded as in an address.

    >>> header_of(["user", "a,b", "", "é"])
    'user, a%2Cb, "", %C3%A9'
    """
    shown = [quote(name[:MAX_NAME_CHARACTERS], errors="replace") or '""' for name in names[:MAX_HEADER_NAMES]]
    return ", ".join(shown + ["..."] * (len(names) > MAX_HEADER_NAMES))


def markdown() -> str:
    """The table as docs/serving.md prints it."""
    rows = [
        (names, "" if routes.count(" ") == 2 else " and ".join(routes.split()), about)
        for routes, groups in HONOURED.items()
        for names, about in groups.items()
    ]
    lines = [
        "| honoured | of | |",
        "|---|---|---|",
        *(f"| {code(names)} | {of} | {about} |" for names, of, about in rows),
    ]
    lines += ["", "| other name | here |", "|---|---|", *(f"| `{name}` | `{ours}` |" for name, ours in RENAMED.items())]
    for title, groups in (("refused by name", REFUSED), ("ignored, and said so", IGNORED)):
        lines += [
            "",
            f"| {title} | why |",
            "|---|---|",
            *(f"| {code(names)} | {why} |" for names, why in groups.items()),
        ]
    return "\n".join(lines) + "\n"


def code(names: str) -> str:
    """Names as Markdown shows code."""
    return ", ".join(f"`{name}`" for name in names.split())
