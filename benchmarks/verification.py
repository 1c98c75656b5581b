"""What verification in fixed shapes costs beside `verify_tree`, and how many kernels and bytes that is.

    OMP_NUM_THREADS=1 python benchmarks/verification.py [--device cpu] [--quick] [--json]

At 151,936 tokens, 8 rows and 60 drafted nodes, with the median of 20 calls; `make gpu` runs the same.
"""

import argparse
import json
from pathlib import Path

from on_gpu.asked import PieceOptions
from on_gpu.report import table
from on_gpu.verification import measure

from multidraft.machine import commit, hardware


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = measure(PieceOptions(options.device, options.quick, Path(), None))
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), options=vars(options), results=lines)))
    else:
        print(f"{hardware()}, {commit()}\n\n{table(lines)}")


if __name__ == "__main__":
    main()
