"""joulegrad completion: a script that knows all commands by itself, so that Tab does not wait for torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from click import Command, Group
from typer.main import get_command

from joulegrad.cli.app import app
from joulegrad.cli.mistakes import mistakes

BASH = """\
_joulegrad() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if (( COMP_CWORD == 1 )); then words="{root}"; else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
  if [[ $current != -* && $COMP_CWORD -gt 1 ]]; then COMPREPLY+=( $(compgen -f -- "$current") ); fi
}}
complete -o filenames -F _joulegrad joulegrad
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"

EXAMPLES = """\b
Examples:
  eval "$(joulegrad completion bash)"      for this shell; in ~/.bashrc, for all
  eval "$(joulegrad completion zsh)"
  joulegrad completion fish > ~/.config/fish/completions/joulegrad.fish
"""


@app.command(epilog=EXAMPLES)
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Whose words to print.")]) -> None:
    """Print what completes commands and options in a shell."""
    with mistakes():
        if shell not in ("bash", "zsh", "fish"):
            raise ValueError(f"shell must be bash, zsh or fish, got {shell!r}")
        root = get_command(app)
        typer.echo(_fish(root) if shell == "fish" else (ZSH if shell == "zsh" else "") + _bash(root), nl=False)


def _bash(root: Command) -> str:
    commands = _commands(root)
    cases = "\n".join(f'    {name}) words="{" ".join(_words(command))}" ;;' for name, command in commands.items())
    return BASH.format(root=" ".join([*commands, *_options(root)]), cases=cases)


def _fish(root: Command) -> str:
    lines = ["complete -c joulegrad -f -n __fish_use_subcommand"]
    for name, command in _commands(root).items():
        lines.append(f"complete -c joulegrad -f -n __fish_use_subcommand -a {name} -d '{_told(command)}'")
        for word in _words(command):
            flag = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c joulegrad -n '__fish_seen_subcommand_from {name}' {flag}")
    return "\n".join(lines) + "\n"


def _commands(command: Command) -> dict[str, Command]:
    if not isinstance(command, Group):
        return {}
    return {name: inner for name, inner in command.commands.items() if not inner.hidden}


def _words(command: Command) -> list[str]:
    """What may follow: the commands inside, and every long option."""
    inner = _commands(command)
    options = [option for c in (command, *inner.values()) for option in _options(c)]
    return [*inner, *dict.fromkeys(options)]


def _options(command: Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
    yield "--help"


def _told(command: Command) -> str:
    return command.get_short_help_str(60).replace("'", "")
