"""Who is told what `multidraft generate` does while it does it: nobody, a progress bar, or a person."""

import typer

from multidraft import terminal
from multidraft.commands.prompts import Prompt


class Screen:
    """Shows nothing, and says what there is to show."""

    def begin(self, prompts: list[Prompt]) -> None:
        """A batch is about to be decoded."""

    def show(self, row: int, piece: str, kind: str) -> None:
        """A row of it has a new piece of text."""

    def end(self, prompts: list[Prompt]) -> None:
        """The batch is done."""

    def close(self) -> None:
        """All is done, or was interrupted."""


class Bar(Screen):
    """A progress bar on stderr."""

    def __init__(self, total: int):
        from tqdm import tqdm

        self.bar = tqdm(total=total, desc="decoding", unit="prompt")

    def end(self, prompts: list[Prompt]) -> None:
        self.bar.update(len(prompts))

    def close(self) -> None:
        self.bar.close()


class Live(Screen):
    """The text as it comes for one prompt at a time; a batch is shown when it is done."""

    def __init__(self) -> None:
        self.held: list[list[tuple[str, str]]] = []
        terminal.legend()

    def begin(self, prompts: list[Prompt]) -> None:
        self.held = [[] for _ in prompts]
        if len(prompts) == 1:
            terminal.heading(prompts[0].id, prompts[0].text)

    def show(self, row: int, piece: str, kind: str) -> None:
        if len(self.held) == 1:
            terminal.show(piece, kind)
        else:
            self.held[row].append((piece, kind))

    def end(self, prompts: list[Prompt]) -> None:
        for prompt, pieces in zip(prompts, self.held, strict=True):
            if len(prompts) > 1:
                terminal.heading(prompt.id, prompt.text)
            for piece, kind in pieces:
                terminal.show(piece, kind)
            typer.echo("\n")

    def close(self) -> None:
        typer.echo()
