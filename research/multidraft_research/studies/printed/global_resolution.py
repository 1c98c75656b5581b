"""What Global Resolution (arXiv 2511.15898v1) prints of solve times: theirs, not measured here.

Milliseconds a token; a "+" is theirs, and means at least. The two tolerances are lost in the copy that we have; the
first is the larger one, and its `success` (in percent) is higher.
"""

from multidraft_research.studies.printed.tables import printed_table as table

HARDWARE = {
    "Llama-3 70B/8B": "Intel Xeon Gold 5315Y (32 cores, 3.20 GHz); solvers run on the CPU only",
    "Gemma-2 27B/2B": "Intel Xeon Gold 6342 (12 cores, 2.80 GHz); solvers run on the CPU only",
}
TIMES = dict(zip(HARDWARE, ("global_resolution_table_1", "global_resolution_table_3"), strict=True))
BEST = "global_resolution_table_2"


def printed_numbers() -> dict[str, object]:
    """All of it as plain data.

    >>> printed_numbers()["solve_times"]["Llama-3 70B/8B"]["10,2"]["Max-Flow"]
    '2.45'
    """
    times = {pair: rows_by_first(table(name).columns, table(name).rows) for pair, name in TIMES.items()}
    best = table(BEST)
    within = {
        pair: rows_by_first(best.columns[1:], [row for row_pair, *row in best.rows if row_pair == pair])
        for pair in dict.fromkeys(row[0] for row in best.rows)
    }
    return {"hardware": HARDWARE, "solve_times": times, "best_acceptance": within}


def rows_by_first(columns: list[str], rows: list[list[str]]) -> dict[str, dict[str, str]]:
    """The rows by their first entry, each by its columns."""
    return {first: dict(zip(columns[1:], values, strict=True)) for first, *values in rows}
