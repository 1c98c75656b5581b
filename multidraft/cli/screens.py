"""Who is told what `multidraft generate` does while it does it: nobody, a progress bar, or a person."""

import typer

from multidraft.cli import terminal
from multidraft.cli.prompts import Prompt


class Screen:
    """Shows nothing, says what there is to show, and knows the texts of the batch so far."""

    def __init__(self) -> None:
        self.rows: list[Prompt] = []
        self.texts: list[list[str]] = []

    def begin(self, prompts: list[Prompt]) -> None:
        """A batch is about to be decoded."""
        self.rows, self.texts = prompts, [[] for _ in prompts]

    def show(self, row: int, piece: str, kind: str) -> None:
        """A row of it has a new piece of text."""
        self.texts[row].append(piece)

    def end(self, prompts: list[Prompt]) -> None:
        """The batch is done."""

    def forget(self) -> None:
        """The batch is kept elsewhere."""
        self.rows, self.texts = [], []

    def close(self) -> None:
        """All is done, or was interrupted."""


class Bar(Screen):
    """A progress bar on stderr."""

    def __init__(self, total: int):
        from tqdm import tqdm

        super().__init__()
        self.bar = tqdm(total=total, desc="decoding", unit="prompt")

    def end(self, prompts: list[Prompt]) -> None:
        self.bar.update(len(prompts))

    def close(self) -> None:
        self.bar.close()


class Live(Screen):
    """The text as it comes for one prompt at a time; a batch is shown when it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[list[tuple[str, str]]] = []
        terminal.legend()

    def begin(self, prompts: list[Prompt]) -> None:
        super().begin(prompts)
        self.held = [[] for _ in prompts]
        if len(prompts) == 1:
            terminal.heading(prompts[0].id, prompts[0].text)

    def show(self, row: int, piece: str, kind: str) -> None:
        super().show(row, piece, kind)
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
