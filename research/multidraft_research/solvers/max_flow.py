"""The optimal transport problem as a maximum flow, on the whole network or on two smaller ones."""

import numpy as np
from jaxtyping import Bool, Float

from multidraft.errors import optional
from multidraft_research.solvers.moved import Moved, upper_bound
from multidraft_research.solvers.network import Network

SCALE = 2**52  # capacities are floor(2^52 x): every limit is kept, and each is at most 2^-52 too low
PARTS = ("outer", "inner")


def max_flow(target: Float[np.ndarray, " vocab"], network: Network) -> Moved:
    """Solve the relaxed problem as a maximum flow: source -> drafted sets -> their tokens -> sink.

    A set lets through its probability, a token its target mass, an edge between them anything; the maximum flow is the
    optimal acceptance rate and its flows are the mass moved. Capacities are rounded *down* to multiples of 2^-52, so
    the flow is feasible exactly and its value at most `(sets + tokens) 2^-52` below the optimum; `error` proves it by
    the minimum cut. `target` may sum to less than one. For i.i.d. drafts `reduced_max_flow` drops edges first, and the
    rule `lorenz` needs no network at all. Raises ImportError without OR-Tools.

    Global Resolution, Section 5.2, with tuples merged into sets.

    >>> from multidraft_research.solvers.network import iid_network
    >>> max_flow(np.array([0.25, 0.75]), iid_network(np.array([0.5, 0.5]), 1)).mass.tolist()
    [0.25, 0.5]
    """
    mass, inside = _flow(target, network, np.ones(len(network.token), dtype=bool))
    return Moved(network, mass, upper_bound(target, network, inside))


def reduced_max_flow(
    target: Float[np.ndarray, " vocab"],
    network: Network,
    inside: Bool[np.ndarray, " vocab"],
    parts: tuple[str, ...] = PARTS,
) -> Moved:
    """Solve the relaxed problem where the best token set `H* = inside` is known: two independent, smaller networks.

    By complementary slackness no mass moves from a set that leaves `H*` to a token of `H*`. The other edges fall into

        outer: sets with a token outside H*, to tokens outside H*  (every such set is accepted for sure)
        inner: sets within H*, to tokens of H*                     (every such token is accepted whenever it is emitted)

    A drafted tuple needs only one of them (`parts`). `error` is that of both parts together, so it is only small when
    both are solved and `inside` is a minimiser (`outer_residuals` finds it for i.i.d. drafts); a wrong `inside` gives a
    feasible point and an honest, large `error`.

    Global Resolution, Theorem 5.1 and Section 5.3.
    """
    leaves = network.leaves(inside)[network.owner]
    edges = {"outer": leaves & ~inside[network.token], "inner": ~leaves}
    mass = np.zeros(len(network.token))
    for part in parts:
        mass += _flow(target, network, edges[part])[0]
    return Moved(network, mass, upper_bound(target, network, inside))


def _flow(
    target: np.ndarray, network: Network, edges: Bool[np.ndarray, " edges"]
) -> tuple[Float[np.ndarray, " edges"], Bool[np.ndarray, " vocab"]]:
    """The maximum flow through some of the edges, and the tokens on the source's side of a minimum cut."""
    mass, inside = np.zeros(len(edges)), np.zeros(len(target), dtype=bool)
    if not edges.any():
        return mass, inside
    sets, owner = np.unique(network.owner[edges], return_inverse=True)
    tokens, token = np.unique(network.token[edges], return_inverse=True)
    left, right = 1 + np.arange(len(sets)), 1 + len(sets) + np.arange(len(tokens))
    sink = 1 + len(sets) + len(tokens)
    graph = optional("ortools.graph.python.max_flow", "OR-Tools", "transport").SimpleMaxFlow()
    graph.add_arcs_with_capacity(np.zeros_like(left), left, _capacity(network.probability[sets]))
    graph.add_arcs_with_capacity(right, np.full_like(right, sink), _capacity(target[tokens]))
    between = graph.add_arcs_with_capacity(left[owner], right[token], np.full(len(owner), SCALE, dtype=np.int64))
    if (status := graph.solve(0, sink)) != graph.OPTIMAL:
        raise RuntimeError(f"OR-Tools found no maximum flow: {status}")
    mass[edges] = graph.flows(between) / SCALE
    reached = np.asarray(graph.get_source_side_min_cut())
    inside[tokens[reached[reached > len(sets)] - len(sets) - 1]] = True
    return mass, inside


def _capacity(limit: np.ndarray) -> np.ndarray:
    """Whole numbers of 2^-52; no more than one can flow anywhere."""
    return np.floor(limit.clip(0, 1) * SCALE).astype(np.int64)
