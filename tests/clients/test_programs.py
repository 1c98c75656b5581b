"""Programs that others wrote: a chat in the shell, an evaluation harness, a judge of compliance, a load generator."""

import json

import openai
import pytest
from conftest import NAME, ZOO

TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{text}}}}"
{rest}"""
CHOICES = """doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""
GENERATE = """doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""


def test_llm(run, url, tmp_path):
    models = [{"model_id": "ours", "model_name": NAME, "api_base": f"{url}/v1"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    for options in ([], ["--no-stream"]):
        assert run("llm", "-m", "ours", "The old house", "-o", "max_tokens", "12", *options).strip()


def greedy(url: str, text: str) -> str:
    """What the model itself says next."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.completions.create(model=NAME, prompt=text, max_tokens=6, temperature=0, stop="\n")
        return answer.choices[0].text


@pytest.fixture
def tasks(tmp_path, url) -> str:
    """Two tasks at which the model is perfect: what it says itself, beside what it does not."""
    texts = ["It was a dark and", "She had never", "The captain of the", "In the year of"]
    documents = [{"text": text, "choices": [greedy(url, text), " zzz qqq"]} for text in texts]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, kind, settings in (("choose", "multiple_choice", CHOICES), ("go_on", "generate_until", GENERATE)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, rest=settings, file=data))
    return str(tmp_path)


@pytest.mark.parametrize("batch", ["1", "4"])
def test_lm_eval_on_completions(run, url, tasks, tmp_path, batch):
    settings = f"model={NAME},base_url={url}/v1/completions,num_concurrent=2"
    run("lm-eval", "run", "--model", "local-completions", "--model_args", settings, "--tasks", "choose,go_on",
        "--include_path", tasks, "--batch_size", batch, "--output_path", tmp_path / "out")  # fmt: skip
    (file,) = (tmp_path / "out").rglob("results*.json")
    results = json.loads(file.read_text())["results"]
    assert results["choose"]["acc,none"] == 1
    assert results["go_on"]["exact_match,none"] == 1


def test_lm_eval_on_chats(run, url, tasks, tmp_path):
    settings = f"model={NAME},base_url={url}/v1/chat/completions"
    run("lm-eval", "run", "--model", "local-chat-completions", "--model_args", settings, "--tasks", "go_on",
        "--include_path", tasks, "--apply_chat_template", "--output_path", tmp_path / "out")  # fmt: skip
    assert list((tmp_path / "out").rglob("results*.json"))


def test_llm_comply(run, url):
    """All but images, which the model cannot see, and tool calls, which are refused."""
    checks = "basic-response system-prompt multi-turn streaming-response streaming-usage error-handling".split()
    names = ",".join(f"chat-{name}" for name in checks)
    options = ["--base-url", f"{url}/v1", "--model", NAME, "--api-key", "none", "--format", "openai-chat"]
    report = json.loads(run("llm-comply", *options, "--filter", names, "--json"))
    assert [test for test in report["results"] if test["status"] != "passed"] == []
    assert len(report["results"]) == len(checks)


def test_guidellm(run, url, tmp_path):
    report, tokenizer_options = (
        tmp_path / "report.json",
        ["--tokenizer", f"kind=huggingface_auto,model={ZOO / 'target'}"],
    )
    run("guidellm", "run", "--backend", f"kind=openai_http,target={url},model={NAME}", *tokenizer_options,
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
        "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=12", "--disable-progress",
        "--output", f"kind=json,path={report}")  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0)
