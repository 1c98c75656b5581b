"""How often a step launches a kernel, and how often the host waits for the device, as torch.profiler counts them."""

from collections import Counter

from torch.profiler import ProfilerActivity, profile

from on_gpu import steps
from on_gpu.asked import Line, PieceOptions

KINDS = {
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"),
    "graphs": ("cudaGraphLaunch",),
    "synchronisations": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    "copies": ("cudaMemcpyAsync",),
    "numbers asked for": ("aten::_local_scalar_dense",),
    "operations": (),  # all that PyTorch dispatched, the only count on a CPU
}


def measure(piece_options: PieceOptions, name: str) -> list[Line]:
    """A line a tree and way: counts of a step, the difference of two runs so that the prompt drops out."""
    return [line_of(piece_options, name, tree, way) for tree, way in steps.cases(piece_options)]


def line_of(piece_options: PieceOptions, name: str, tree: str | None, way: bool) -> Line:
    """Counts of a step."""
    short, long = (4, 8) if piece_options.quick else (8, 40)
    steps.run(piece_options, name, tree, way, long)
    (fewer, first), (counts_of_long, second) = (
        counted(piece_options, name, tree, way, new_tokens) for new_tokens in (short, long)
    )
    of_a_step = {kind: round((counts_of_long[kind] - fewer[kind]) / max(second - first, 1), 1) for kind in KINDS}
    return dict(model=name, tree=tree or "plain", way="compiled" if way else "recorded") | of_a_step


def counted(
    piece_options: PieceOptions, name: str, tree: str | None, way: bool, new_tokens: int
) -> tuple[Counter[str], int]:
    """What a run does, and its steps."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (piece_options.device.type == "cuda")
    with profile(activities=activities) as seen:
        info = steps.run(piece_options, name, tree, way, new_tokens)
    counts: Counter[str] = Counter()
    for event in seen.key_averages():
        for kind, names in KINDS.items():
            counts[kind] += event.count * (event.key in names)
        counts["operations"] += event.count * event.key.startswith("aten::")
    return counts, info.target_passes
