"""What Global Resolution (arXiv 2511.15898v1) prints of solve times: theirs, not measured here.

Milliseconds a token; a "+" is theirs, and means at least. The two tolerances are lost in the copy that we have; the
first is the larger one, and its `success` (in percent) is higher.
"""

HARDWARE = {
    "Llama-3 70B/8B": "Intel Xeon Gold 5315Y (32 cores, 3.20 GHz); solvers run on the CPU only",
    "Gemma-2 27B/2B": "Intel Xeon Gold 6342 (12 cores, 2.80 GHz); solvers run on the CPU only",
}
SOLVERS = ("General LP", "Max-Flow", "Opt. Max-Flow", "G.R., larger tolerance", "G.R., smaller tolerance")
SIZES = ((10, 2), (10, 3), (10, 4), (10, 5), (100, 2), (100, 3), (1000, 2))
TIMES = {
    "Llama-3 70B/8B": (  # Table 1
        ("4.07", "2.45", "2.51", "5.27 (98%)", "7.62 (93%)"),
        ("30.14", "3.80", "3.88", "17.35 (98%)", "23.95 (87%)"),
        ("4000+", "74.21", "74.37", "40.30 (97%)", "54.84 (86%)"),
        ("400000+", "10000+", "10000+", "70.75 (96%)", "94.79 (85%)"),
        ("4000+", "72.28", "63.03", "23.92 (38%)", "25.47 (23%)"),
        ("400000+", "200000+", "200000+", "30.52 (23%)", "38.44 (14%)"),
        ("OOM", "400000+", "400000+", "34.94 (31%)", "47.46 (15%)"),
    ),
    "Gemma-2 27B/2B": (  # Table 3
        ("7.85", "3.18", "3.26", "7.46 (98.87%)", "10.63 (92.75%)"),
        ("59.43", "5.05", "5.10", "24.64 (98.54%)", "33.95 (88.06%)"),
        ("4000+", "95.73", "94.21", "57.21 (98.31%)", "77.42 (86.21%)"),
        ("400000+", "10000+", "10000+", "98.10 (97.77%)", "130.68 (85.36%)"),
        ("4000+", "95.13", "82.94", "49.58 (36.64%)", "43.49 (18.58%)"),
        ("400000+", "200000+", "200000+", "107.65 (19.53%)", "32.81 (8.18%)"),
        ("OOM", "400000+", "400000+", "60.05 (27.5%)", "141.25 (8.04%)"),
    ),
}
BEST = {  # Table 2: best acceptance in percent within a time, in milliseconds; both flows are one column there
    "Llama-3 70B/8B": {10: (82.53, 83.94, 85.65, 85.10), 100: (83.94, 89.01, 90.04, 89.46)},
    "Gemma-2 27B/2B": {10: (79.03, 80.69, 81.90, 81.35), 100: (80.69, 85.83, 86.60, 86.07)},
}


def printed() -> dict[str, object]:
    """All of it as plain data.

    >>> printed()["solve_times"]["Llama-3 70B/8B"]["10,2"]["Max-Flow"]
    '2.45'
    """
    times = {
        pair: {f"{k},{n}": dict(zip(SOLVERS, row, strict=True)) for (k, n), row in zip(SIZES, rows, strict=True)}
        for pair, rows in TIMES.items()
    }
    columns = (SOLVERS[0], "Max-Flow, either", *SOLVERS[3:])
    best = {
        pair: {f"{limit} ms": dict(zip(columns, row, strict=True)) for limit, row in rows.items()}
        for pair, rows in BEST.items()
    }
    return {"hardware": HARDWARE, "solve_times": times, "best_acceptance": best}
