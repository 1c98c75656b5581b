"""The tree grows where it pays: a draft, or a level, while its expected tokens are worth more than its time."""

from collections.abc import Sequence

import torch

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Growing
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.planning.costs import CostsByRows
from multidraft.planning.predictions import MOST, Predictions, class_of

FORGET = 0.97


class Average:
    """A ratio of sums that fade."""

    def __init__(self, value: float, weight: float):
        self.top, self.bottom = value * weight, weight

    def add(self, top: float, bottom: float) -> None:
        self.top, self.bottom = self.top * FORGET + top, self.bottom * FORGET + bottom

    @property
    def value(self) -> float:
        return self.top / self.bottom


class Pilot(Growing):
    """Trees that grow by predicted claims."""

    def __init__(self, costs: CostsByRows, predictions: Predictions, rho: float, nodes: int = 64, depth: int = 8):
        super().__init__(MOST, nodes + 1)
        self.by_rows, self.predictions, self.depth = costs, predictions, depth
        a = predictions.average[1]
        self.value = [Average(a, 5.0) for _ in range(depth + 1)]  # of reading a level, by reach
        self.net = [Average(0.5, 5.0) for _ in range(depth + 1)]
        self.factor = [Average(1.0, 5.0) for _ in range(depth + 1)]
        self.rho = rho
        self.speed = Average(rho, 0.3)
        self.log = []
        self.parts = [[]] + [[share / sum(shares) for share in shares] for shares in predictions.shares]

    def seed(self, rows: int) -> Tree:
        self.costs = self.by_rows.at(rows)
        self.rows = rows
        self.rho = self.speed.value
        self.reach = [{0: 1.0} for _ in range(rows)]
        self.predicted: list[dict[int, float]] = [{} for _ in range(rows)]
        self.levels: list[list[float]] = []  # reach before, value, level seconds
        self.sure = None
        self.widths = []
        return Tree((-1,), (0,))

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        worth, slots = self.value[min(depth, self.depth)].value, []
        cost = self.rho * (self.costs.level(1) + self.costs.look)
        wide = self.rho * max(self.costs.level(2) - self.costs.level(1), 0.0)
        total, here = 0.0, 0.0
        for row in range(self.rows):
            nodes = drafts.nodes_at(row, depth) if depth < self.depth and len(drafts.trees[0]) < self.most_slots else []
            self.note_reach(drafts, row, depth, nodes)
            reach = self.reach[row]
            here += sum(reach[node] for node in nodes)
            chosen = [node for node in nodes if reach[node] * worth > wide]
            total += sum(reach[node] * worth - wide for node in chosen)
            slots.append(chosen)
        if total < cost - wide:
            slots = [[] for _ in slots]
        if any(slots):
            self.widths.append(max(map(len, slots)))
            self.levels.append([here, 0.0, self.rho * (self.costs.level(self.widths[-1]) + self.costs.look)])
        else:
            self.finish(drafts, here)
        return slots

    def note_reach(self, drafts: DraftTree, row: int, depth: int, nodes: list[int]) -> None:
        if not depth or not nodes:
            return
        tree, reach, tokens = drafts.trees[row], self.reach[row], drafts.tokens[row].tolist()
        group = drafts.read[row][-self.group :]
        claims: dict[int, dict[int, float]] = {}
        for node in nodes:
            parent = tree.parents[node]
            probability = float(self.sure[row, group.index(parent), tokens[node]])
            count, rank = tree.drafts[parent], node - tree.first_child[parent]
            claims.setdefault(parent, {})[node] = self.predictions.claims[count][rank][class_of(probability)] + 1e-9
        for parent, own in claims.items():
            whole = reach[parent] * min(self.predicted[row][parent] * self.factor[depth - 1].value, 1.0) / sum(own.values())
            for node, claim in own.items():
                reach[node] = whole * claim

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        self.sure = drafts.logits[-1].float().softmax(-1)
        self.group = self.sure.shape[1]
        self.top = self.sure.topk(MOST, -1).values.tolist()
        return super().extended(drafts, depth)

    def decide(self, drafts: DraftTree, depth: int, row: int) -> dict[int, int]:
        nodes = [n for n in drafts.read[row][-self.group :] if n >= 0]
        below = self.value[depth + 1].value if depth + 1 < self.depth else 0.0
        factor = self.factor[depth].value
        used = len(drafts.trees[row])
        price = self.rho * self.costs.one_more(used) / self.rows
        extra = price + self.rho * max(self.costs.level(2) - self.costs.level(1), 0.0) / self.rows
        gains = self.predictions.gains
        counts, value, room = {}, 0.0, self.most_slots - used
        for place, node in enumerate(nodes):
            r, accepted, best, counts[node] = self.reach[row][node] * factor, 0.0, 0.0, 0
            for n in range(1, min(MOST, room) + 1):
                accepted += gains[n][class_of(self.top[row][place][n - 1])]
                whole = r * min(accepted, 1.0)
                worth = whole - n * price
                for share in self.parts[n]:
                    worth += max(whole * share * below - extra, 0.0)
                if worth > best:
                    best, counts[node] = worth, n
                elif n > counts[node] + 2:
                    break
            room -= counts[node]
        for place, node in enumerate(nodes):
            if counts[node]:
                self.predicted[row][node] = min(self.predictions.acceptance(self.top[row][place], counts[node]), 1.0)
        tokens = sum(self.reach[row][v] * min(factor * p, 1.0) for v, p in self.predicted[row].items() if v in counts)
        self.levels[-1][1] += tokens - price * sum(counts.values())
        self.levels[-1].append(tokens)
        return counts

    def finish(self, drafts: DraftTree, left: float) -> None:
        nodes = len(drafts.trees[0]) - 1
        tokens = self.rows + sum(sum(level[3:]) for level in self.levels)
        seconds = self.costs.seconds(self.widths, nodes, True)
        self.speed.add(tokens, seconds)
        below = 0.0
        self.log.append((self.widths, nodes, tokens))
        for depth in range(len(self.levels) - 1, -1, -1):
            here, value, cost = self.levels[depth][:3]
            self.value[depth].add(value + below, here)
            below = value + below - cost
            self.net[depth].add(below, here)
        # what was not read is worth nothing

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        if node in self.predicted[row]:
            depth = tree.drafts.trees[row].depths[node]
            self.factor[depth].add(verdict.acceptance, weight * self.predicted[row][node])
