"""`multidraft generate`: continue prompts, colour tokens by kind, and report speed and acceptance."""

from dataclasses import asdict, dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from multidraft import machine
from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.decode import SEED_STRIDE, Decoded, Job, Texts, decode
from multidraft.cli.drafter_names import NONE
from multidraft.cli.engines import Loader
from multidraft.cli.pair import Models, check_names, default_engine, default_pair, pair_note
from multidraft.cli.prompts import Prompt, converse, note_open_answers, note_short_context, read_prompts
from multidraft.cli.run_report import BASELINES, RunReport, baselines, run_baseline
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.sampling.param_fields import Setting
from multidraft.sampling.params import DEFAULT_NEW_TOKENS, RECOMMENDED, SETTINGS, SamplingParams

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info

JSONL_HELP = "Write each result as it comes; the same command resumes a stopped run."
MAX_NUM_SEQS_HELP = "Prompts decoded at a time; as one ends, the next is read. Results come 16 for each of these."
ALL_BASELINES = "all"  # baselines
BASELINES_HELP = "With --compare, transformers' drafting that is run too: all, none, lookup or assisted."
PROMPTS_PER_ROW = 16  # of a call with --max-num-seqs, after which its results are written
SCHEMA_HELP = "File with a JSON schema that every text must follow; a text that is cut may be incomplete."
WARM_UP_TOKENS = 8  # the first forward passes are slow, and should not count in a comparison


@dataclass(frozen=True)
class PromptSource:
    """The prompts to continue."""

    prompt: Annotated[str | None, o.option("Text to continue.", o.PROMPTS)] = None
    prompts: Annotated[Path | None, o.option(o.FILE_HELP, o.PROMPTS)] = None
    limit: o.Limit = None
    chat: Annotated[bool, o.option("Use the chat template; without a prompt, converse.", o.PROMPTS, "--chat")] = False

    @property
    def is_conversation(self) -> bool:
        """Whether to converse: --chat without a prompt."""
        return self.chat and self.prompt is self.prompts is None


def sampling_option(name: str, known: Setting) -> tuple[str, Any, Any]:
    """The field of an option: its name, type and default."""
    default = {"max_new_tokens": DEFAULT_NEW_TOKENS, "temperature": None}.get(name, getattr(SamplingParams, name))
    kind = known.kind if default is not None else known.kind | None
    text = f"{known.help} Default: the model's own." if name in RECOMMENDED else known.help
    return name, Annotated[kind, o.option(text, o.SAMPLING)], default


SAMPLING_OPTIONS = [sampling_option(name, known) for name, known in SETTINGS.items() if known.option]
SamplingOptions: Any = make_dataclass("SamplingOptions", SAMPLING_OPTIONS, frozen=True)


@dataclass(frozen=True)
class FormOptions:
    """What the text must look like."""

    json_schema: Annotated[Path | None, o.option(SCHEMA_HELP, o.SAMPLING)] = None

    @property
    def schema(self) -> str | None:
        """The text of the schema; raises AdviceError if it cannot be read, or is none."""
        if self.json_schema is None:
            return None
        from multidraft.sampling.grammar import MAX_GRAMMAR_CHARACTERS, check_text, grammar_text, schema_text

        content = files.content(self.json_schema, "the JSON schema", 4 * MAX_GRAMMAR_CHARACTERS)
        text = schema_text(content.decode(errors="replace"), f"the JSON schema {str(self.json_schema)!r}")
        check_text(grammar_text(text, None, None))
        return text


@dataclass(frozen=True)
class Run:
    """Batches, seed, threads and compilation."""

    batch: Annotated[int, o.option("Prompts decoded side by side, up to the end of the longest.", o.RUN, min=1)] = 1
    max_num_seqs: Annotated[int | None, o.option(MAX_NUM_SEQS_HELP, o.RUN, "--max-num-seqs", min=1)] = None
    seed: o.Seed = None
    threads: Annotated[int | None, o.option("Threads on the CPU. Default: torch's own.", o.RUN, min=1)] = None
    compiles: Annotated[bool, o.option("Compile both models' steps first: for long runs.", o.RUN, "--compile")] = False


@dataclass(frozen=True)
class Output:
    """What is written, and to which files."""

    jsonl: Annotated[Path | None, o.option(JSONL_HELP, o.OUTPUT)] = None
    wait: o.Wait = False
    trace: Annotated[Path | None, o.option("Record every draw and decision; see `multidraft replay`.", o.OUTPUT)] = None
    compare: Annotated[
        bool, o.option("Also decode without drafts, and by transformers' drafting.", o.OUTPUT, "--compare")
    ] = False
    baselines: Annotated[str, o.option(BASELINES_HELP, o.OUTPUT)] = ALL_BASELINES
    as_json: o.JsonFlag = False

    def check(self, source: PromptSource, *inputs: Path | str | None) -> None:
        """Raise on options that a conversation lacks, and on files that cannot be written or would replace an input."""
        options = {"--json": self.as_json, "--compare": self.compare, "--jsonl": self.jsonl, "--limit": source.limit}
        for name in (name for name, value in options.items() if value and source.is_conversation):
            raise AdviceError(f"a conversation has no {name}; leave it out, or give --prompt or --prompts")
        if self.baselines not in (*BASELINES, ALL_BASELINES, NONE):
            raise AdviceError(
                f"there are no baselines {self.baselines!r}; use {ALL_BASELINES}, {NONE}, {' or '.join(BASELINES)}"
            )
        files.check(self.trace, "--trace", inputs)
        files.check(self.jsonl, "--jsonl", inputs)
        if self.trace is not None and self.jsonl is not None and self.trace.resolve() == self.jsonl.resolve():
            raise AdviceError("--trace and --jsonl are one file; choose two")


@o.flatten_options
def generate(
    models: o.ModelOptions,
    source: PromptSource,
    sampling: SamplingOptions,
    form: FormOptions,
    drafting: o.DraftingOptions,
    run: Run,
    output: Output,
) -> None:
    """Continue prompts by multi-draft speculative decoding, with the pair that is installed or with yours."""
    prompts = [] if source.is_conversation else read_prompts(source.prompt, source.prompts, source.limit)
    engine = models.named_engine or default_engine(models.target, models.draft, run.compiles)
    loader = Loader(engine, models.trust, models.revision, models.corpus)
    loader.check()
    target, draft = default_pair(models.target, models.draft, loader.heads_pay and not run.compiles)
    settings = asdict(drafting) | asdict(sampling) | {"compile": run.compiles, "max_num_seqs": run.max_num_seqs}
    if run.seed is not None:
        settings["tune_budget"] = 0.0  # timed trees would depend on the clock
    batch = max(run.batch, PROMPTS_PER_ROW * (run.max_num_seqs or 0))
    job = Job(target, draft, loader, prompts, source.chat, batch, run.seed or 0, settings, schema=form.schema)
    output.check(source, source.prompts, form.json_schema, models.target, models.draft, drafting.plan)
    check_names(target, draft, engine, models.corpus)
    job.check()
    o.check_threads(run.threads)
    with files.hold(output.jsonl, output.wait), files.hold(output.trace, output.wait):
        if run.threads is not None:
            import torch

            torch.set_num_threads(run.threads)
        models_note = pair_note(target, draft, (models.target, models.draft), engine)
        decode_prompts(job, source.is_conversation, output, models_note)


def decode_prompts(job: Job, is_conversation: bool, output: Output, models_note: str | None) -> None:
    """Decode, and report; a note says which models were taken if they were not named."""
    from multidraft.decoding.trace import TraceFile
    from multidraft.sampling.generation_config import defaults_note, model_defaults

    journal = job.journal(output.jsonl, output.compare) if output.jsonl else None
    done, count = len(journal.records) if journal else 0, len(job.prompts)
    if done:
        ending = "going on with the others" if done < count else "nothing is left to do"
        terminal.note(f"{output.jsonl} has {done} of {count} prompts; {ending}")
    if done and output.trace is not None and output.trace.exists():
        raise AdviceError(
            f"--trace {str(output.trace)!r} has the trace of earlier prompts, and would be lost; give another file"
        )
    pair, prompts, defaults = job.models, job.encode_prompts(job.prompts), model_defaults(job.models.target)
    job = replace(job, settings=job.settings_for(pair.target))
    report = RunReport(job.reported_settings, journal)
    line = defaults_note({name: value for name, value in defaults.items() if job.settings[name] == value})
    if line is not None and not output.as_json:
        terminal.note(line)
    if models_note is not None and not output.as_json:
        terminal.note(models_note)
    if output.trace is not None:
        facts = {"run": job.reported_settings, "versions": machine.versions(), "hardware": machine.hardware()}
        job = replace(job, trace=TraceFile(output.trace, pair.tokenizer, facts))
    note_short_context(prompts, pair, job.settings["max_new_tokens"])
    if job.chat:
        note_open_answers(pair.tokenizer)
    if is_conversation:
        return converse(pair, lambda prompt: answer(pair, job, prompt))
    decode_all(pair, job, prompts[done:], report, output)
    report.print(output.as_json)
    if report.interrupted:
        raise KeyboardInterrupt(f"stopped after {done + report.complete} of {count} prompts")


def answer(pair: Models, job: Job, prompt: Prompt) -> tuple[str, str]:
    """Print an answer in a conversation as it comes; return its text and a summary."""
    note_short_context([prompt], pair, job.settings["max_new_tokens"])
    texts = Texts(pair.tokenizer, [prompt], job.stops(pair), show=True, headings=False)
    end = ""
    try:
        info: Info | None = decode(pair, job, texts)[1]
    except KeyboardInterrupt as interrupt:
        info, end = vars(interrupt).get("info"), ", stopped"
    if info is None:
        return texts.full_texts[0], "stopped"
    pace = f"{info.block_efficiency:.2f} a pass, {info.tokens_per_second:.1f} per second"
    return texts.full_texts[0], f"{info.tokens} tokens, {pace}{end}"


def decode_all(pair: Models, job: Job, prompts: list[Prompt], report: RunReport, output: Output) -> None:
    """Decode all prompts; compared decoders take turns batch by batch, so that noise affects all alike."""
    from tqdm import tqdm

    from multidraft.decoding.state import MEASURED_AT_FIRST, MEASURED_EVERY_STEPS

    show_texts, texts = not output.as_json, Texts(pair.tokenizer, [], job.stops(pair))
    if show_texts and pair.draft is not None:
        terminal.legend()
    try:
        with tqdm(total=len(prompts), desc="decoding", unit="prompt", disable=show_texts) as bar:
            for first in range(0, len(prompts), job.batch):
                batch = prompts[first : first + job.batch]
                if not first:
                    short = replace(job, settings=job.settings | {"max_new_tokens": WARM_UP_TOKENS}, trace=None)
                    decode_each_way(pair, short, Texts(pair.tokenizer, batch, job.stops(pair)), output)
                texts = Texts(pair.tokenizer, batch, job.stops(pair), show_texts)
                report.add(batch, *decode_each_way(pair, job, texts, output))
                if report.info.measured >= MEASURED_AT_FIRST and not report.info.is_measured_cheaply:
                    job = replace(job, settings=job.settings | {"measure": MEASURED_EVERY_STEPS})
                texts = Texts(pair.tokenizer, [], job.stops(pair))
                bar.update(len(batch))
    except KeyboardInterrupt as interrupt:
        report.interrupt(texts.prompts, texts.print(), None if output.compare else vars(interrupt).get("info"))
    finally:
        if show_texts:
            terminal.show("\n")


def decode_each_way(
    pair: Models, job: Job, texts: Texts, output: Output
) -> tuple[Decoded, Decoded | None, dict[str, tuple[int, float]]]:
    """Decode a batch with drafts; to compare, also without drafts and by transformers' own drafting."""
    drafted = decode(pair, job, texts)
    if not output.compare:
        return drafted, None, {}
    unseen, seed = Texts(pair.tokenizer, texts.prompts, job.stops(pair)), job.seed * SEED_STRIDE
    plain = drafted if pair.draft is None else decode(pair, job, unseen, drafts=False)
    skipped = job.schema or output.baselines == NONE
    prompts, keywords = texts.prompts, {} if skipped else baselines(pair, job.settings, job.target)
    settings = job.settings | {"eos_token_id": job.ends(pair), "stop": job.stops(pair)}
    chosen = {name: k for name, k in keywords.items() if output.baselines in (name, ALL_BASELINES)}
    return drafted, plain, {n: run_baseline(pair, prompts, settings, seed, k) for n, k in chosen.items()}
