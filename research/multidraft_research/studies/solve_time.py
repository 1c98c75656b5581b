"""How long each solver of the optimal transport problem takes for one token, and what its answer is worth.

The problem is that of Global Resolution's Appendix N: drafts come i.i.d. from the draft model's top k tokens, which
leaves a problem over those k tokens with the renormalised draft and the target's own probabilities, which then sum to
less than one. What the target has elsewhere can never be drafted, and no method spends time on it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.sampling.from_logits import distribution
from multidraft.verification.distributions import uniform
from multidraft.verification.laws import Iid
from multidraft.verification.laws.iid import optimal_iid
from multidraft_research.captures.recording import Recording
from multidraft_research.solvers.global_resolution_rule import ResolutionFailure
from multidraft_research.solvers.linear_program import OutOfTime
from multidraft_research.studies.solvers import Facts, Method

PAPER_SIZES = [(10, 2), (10, 3), (10, 4), (10, 5), (100, 2), (100, 3), (1000, 2)]  # k and n of its Table 1
LARGER_SIZES = [(1000, 4), (10_000, 8), (128_256, 8), (128_256, 64)]
VOCABULARY = 128_256
POSITIONS = 96  # of every source, so that the first tokens are the same whatever their number
QUICK, REPEATS = 0.2, 3  # a call this short, in seconds, is repeated and the shortest time counts
STATUS = {AdviceError: "too large", OutOfTime: "over the limit", ResolutionFailure: "failed"}
STOPS = ("too large", "over the limit")


@dataclass(frozen=True)
class Task:
    """One method, to be timed on one token of a source, with k tokens and n drafts."""

    source: str
    k: int
    n: int
    token: int
    method: str

    @property
    def case(self) -> tuple[str, int, int, str]:
        """Which method in which problem, for all tokens."""
        return self.source, self.k, self.n, self.method


@dataclass(frozen=True)
class Result(Task):
    """What became of it: `status` is solved, failed, too large or over the limit, and `reason` says why.

    `optimum` is the optimal acceptance rate; what follows it is known where the problem was solved.
    """

    status: str
    seconds: float
    optimum: float
    reason: str = ""
    acceptance_rate: float | None = None
    total_variation: float | None = None
    by: str = ""


def power_law_pairs(count: int, vocabulary: int, seed: int) -> Recording:
    """Logits with the tails of language models: draft probabilities fall as a power of the rank, the target is noisy.

    With exponents in [1, 2] and noise of 1 the entropy (3.8 nats at 128,256 tokens) and the acceptance of one draft
    (0.67) are near those of the embedded pair (4.0 and 0.63).
    """
    generator = torch.Generator().manual_seed(seed)
    exponent = 1 + torch.rand(count, 1, generator=generator)
    draft = -exponent * torch.arange(1, vocabulary + 1).log()
    draft = draft[:, torch.randperm(vocabulary, generator=generator)]
    return Recording(draft + torch.randn(count, vocabulary, generator=generator), draft)


def top_k(
    target: Float[Tensor, " vocabulary"], draft: Float[Tensor, " vocabulary"], k: int
) -> tuple[Float[Tensor, " kept"], Float[Tensor, " kept"]]:
    """The problem over the k most likely tokens of the draft."""
    kept = draft.topk(k).indices.sort().values
    return target[kept], draft[kept] / draft[kept].sum()


def tasks(sources: dict[str, Recording], sizes: list[tuple[int, int]], tokens: int, names: Iterable[str]) -> list[Task]:
    """All that there is to time, the methods of a token one after another."""
    if tokens > (fewest := min(len(recording.target) for recording in sources.values())):
        raise AdviceError(f"there are only {fewest} tokens to be had; ask for at most so many")
    fits = [(s, k, n) for s, recording in sources.items() for k, n in sizes if k <= recording.target.shape[-1]]
    if not fits:
        raise AdviceError("every k is larger than the vocabulary of the recording; choose smaller ones")
    return [Task(s, k, n, token, name) for s, k, n in fits for token in range(tokens) for name in names]


def measure(
    jobs: Iterable[Task],
    sources: dict[str, Recording],
    methods: dict[str, Method],
    limit: float,
    done: list[Result],
    seed: int = 0,
) -> Iterator[Result]:
    """Results of what is not `done` yet; a method that was too slow or could not start skips the rest of its case."""
    known = {(*result.case, result.token) for result in done}
    stopped = {result.case for result in done if result.status in STOPS}
    for task in jobs:
        if task.case in stopped or (*task.case, task.token) in known:
            continue
        result = measure_task(task, sources[task.source], methods[task.method], limit, seed)
        if result.status in STOPS:
            stopped.add(result.case)
        yield result


def measure_task(task: Task, recording: Recording, method: Method, limit: float, seed: int) -> Result:
    """Time a method on a token and ask what its answer is worth."""
    position = int(torch.randperm(len(recording.target), generator=torch.Generator().manual_seed(seed))[task.token])
    whole = [distribution(x[position].double()) for x in (recording.target, recording.draft)]
    target, draft = top_k(whole[0], whole[1], task.k)
    law, generator = Iid(task.n), torch.Generator().manual_seed(seed + task.token)
    drafted = law.draw(draft, uniform((task.n,), generator, draft.device))
    result = partial(Result, **asdict(task), optimum=float(optimal_iid(target, draft, task.n)))
    start = perf_counter()
    try:
        seconds, facts = time_calls(method, target, draft, drafted, law)
    except tuple(STATUS) as error:
        return result(status=STATUS[type(error)], seconds=perf_counter() - start, reason=str(error))
    if seconds > limit:
        return result(status="over the limit", seconds=seconds, reason=f"took {seconds:.1f} seconds")
    return result(status="solved", seconds=seconds, **asdict(facts()))


def time_calls(
    method: Method, target: Tensor, draft: Tensor, drafted: Tensor, law: Iid
) -> tuple[float, Callable[[], Facts]]:
    """Shortest time of a few calls, of one where it takes long, the residual included; every call solves anew."""
    shortest = float("inf")
    for _ in range(REPEATS):
        start = perf_counter()
        outcome, facts = method(target, draft, drafted, law)
        _ = outcome.residual  # some rules leave it for later
        shortest = min(shortest, perf_counter() - start)
        if shortest > QUICK:
            break
    return shortest, facts


def warm_up(methods: dict[str, Method]) -> None:
    """Let every method import what it needs (or say what is missing) and run once."""
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    for method in methods.values():
        method(p, q, torch.tensor([0, 1]), Iid(2))


def fingerprint(recording: Recording) -> str:
    """Tells one recording from another."""
    numbers = torch.cat([recording.target, recording.draft]).float().numpy()
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]
