"""The gain of the best growing shape over the best fixed one, each chosen without the prompt that judges it."""

from collections import defaultdict

from multidraft_research.studies.running.cells import Place, Sums, influences, value_of

ALL = "all prompts"
GROWS = "grows"
Shapes = dict[str, Sums]


def gains(sums_by_place: dict[Place, Sums]) -> dict[Place, Sums]:
    """From tokens and time of every shape, `costs|shape` in a row, to the gain of those that grow, kind by kind."""
    return {place: gain(shapes) for place, shapes in group_shapes(sums_by_place).items()}


def group_shapes(sums_by_place: dict[Place, Sums]) -> dict[Place, Shapes]:
    """All shapes at one place of the tables; beside every kind of text there are all prompts."""
    places: dict[Place, Shapes] = defaultdict(lambda: defaultdict(dict))
    for (panel, row, column), sums_of_place in sums_by_place.items():
        costs, shape = row.split("|")
        for name in (panel.split(", ")[0] + f", {ALL}", panel):
            places[name, costs, column][shape] |= sums_of_place
    return places


def gain(shapes: Shapes) -> Sums:
    """The ratio of two speeds as an average over prompts, whose error is that of paired prompts.

    Prompts move it by what they move each speed, to first order: these pseudo-values have it as their average.
    """
    growing = choose_shapes({name: prompts for name, prompts in shapes.items() if name.startswith(GROWS)})
    fixed = choose_shapes({name: prompts for name, prompts in shapes.items() if not name.startswith(GROWS)})
    above, below = value_of(growing), value_of(fixed)
    up, down, count = influences(growing), influences(fixed), len(fixed)
    ratio = above / below
    return {prompt: (ratio * (1 + count * (up[prompt] / above - down[prompt] / below)), 1.0) for prompt in fixed}


def choose_shapes(shapes: Shapes) -> Sums:
    """What every prompt adds with the shape that is fastest on all the others; one prompt alone chooses for itself."""
    totals = {name: [sum(part) for part in zip(*by_prompt.values(), strict=True)] for name, by_prompt in shapes.items()}
    prompts = next(iter(shapes.values()))
    alone = len(prompts) == 1

    def elsewhere(name: str, prompt: str) -> float:
        (total, weight), (by_prompt, its) = totals[name], shapes[name][prompt]
        return total / weight if alone else (total - by_prompt) / (weight - its)

    best = {prompt: max(shapes, key=lambda name: elsewhere(name, prompt)) for prompt in prompts}
    return {prompt: shapes[name][prompt] for prompt, name in best.items()}
