"""Is a server lossless: bets from outside, on every token, against the law that it reports or that a reference has."""

from multidraft.judging.judgement import judge
from multidraft.judging.verdict import Verdict

__all__ = ["Verdict", "judge"]
