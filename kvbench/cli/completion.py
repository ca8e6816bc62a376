"""`kvbench completion`: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

import click

from ..core.errors import EXIT_OK


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> int:
    """Print the completion script of a shell.

    bash: eval "$(kvbench completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc;
    fish: kvbench completion fish > ~/.config/fish/completions/kvbench.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # all three are click's own
    click.echo(kind(context.find_root().command, {}, "kvbench", "_KVBENCH_COMPLETE").source())
    return EXIT_OK
