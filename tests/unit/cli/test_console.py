"""Tables in a pipe and in a terminal."""

import io

from rich.console import Console

from skysail.cli import console

NAME = "registry.example.test/team/" + "a-long-name-" * 12


def test_table_in_a_pipe_has_one_line_per_row(capsys):
    table = console.table("image", "packages")
    table.add_row(NAME, "torch, numpy")
    console.open_console().print(table)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "torch" in line]
    assert NAME in row


def test_table_in_a_terminal_folds_names_and_cuts_none():
    table = console.table("image", "packages")
    table.add_row(NAME, "torch, numpy")
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=60, color_system=None).print(table)
    assert "…" not in output.getvalue()
    words = "".join(line.split("│")[1].strip() for line in output.getvalue().splitlines() if line.startswith("│"))
    assert NAME in words
