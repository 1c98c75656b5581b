"""The sizes that steps are padded to: few, so that what is compiled or recorded for one serves all."""

WIDEST = 256  # tokens of a step that is compiled; a wider one is bound by arithmetic
SLOTS = 256  # the smallest number of slots that a step sees


def bucket(count: int, least: int = 1) -> int:
    """The power of two that holds so many."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def buckets(largest: int, least: int = 1) -> list[int]:
    """All up to the one that holds so many, the largest first."""
    top = bucket(largest, least)
    return [top >> shift for shift in range(top.bit_length()) if top >> shift >= least]
