"""`dropmuon completion bash | zsh | fish`: scripts that let a shell complete commands and options.

They are made from the parser itself, so they never lag behind it, and are static: no Python starts
when Tab is pressed. Packages for this exist (argcomplete starts Python at every Tab, shtab has no
fish); what is needed here is short enough to do without one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from dropmuon.lab.settings import SCHEDULES

__all__ = ["add"]

_DATA = (
    *("fashion-mini", "mnist", "fashion-mnist", "cifar10", "digits"),
    *("shakespeare", "enwik8"),
)
_VALUES: Mapping[str, Sequence[str]] = {
    "dataset": _DATA,
    "names": _DATA,
    "model": ("cnn", "mlp", "resnet18", "gpt"),
    "experiment": ("mnist", "fashion-mnist", "cifar10", "cifar10-plain", "all"),
    "budget": ("ops", "seconds", "epochs"),
    "schedule": SCHEDULES,
    "policy": ("spectral", "muon", "muon-adamw", "scion", "euclidean", "sign"),
    "by": ("module", "block"),
    "regime": ("smooth", "1/eps", "1/eps^2", "stochastic"),
    "logger": ("tensorboard", "wandb", "mlflow"),
    "device": ("cpu", "cuda", "mps"),
}
"""Values that may be completed, by the name of an argument; others are accepted as well."""


def add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], root: argparse.ArgumentParser
) -> None:
    """Add the command; `root` is the parser that is completed."""
    parser = commands.add_parser(
        "completion",
        help="print what lets bash, zsh or fish complete commands and options",
        description="Print a script that lets a shell complete commands, options and names.",
        epilog='bash: add  eval "$(dropmuon completion bash)"  to ~/.bashrc. '
        'zsh: add  eval "$(dropmuon completion zsh)"  to ~/.zshrc, after compinit. '
        "fish: run  dropmuon completion fish > ~/.config/fish/completions/dropmuon.fish",
    )
    parser.add_argument("shell", choices=tuple(_SHELLS), help="bash, zsh or fish")
    parser.set_defaults(run=partial(_run, root))


def _run(root: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    print(_SHELLS[options.shell](list(_commands(root))), end="")
    return 0


@dataclass(frozen=True)
class _Argument:
    """An option, or an argument without a name: what may follow, as files, values, or neither."""

    flags: tuple[str, ...]
    takes: Literal["nothing", "anything", "files"] | tuple[str, ...]
    about: str
    repeats: bool


@dataclass(frozen=True)
class _Command:
    """A command by its path, such as "/data/fetch"; the program itself has an empty one."""

    path: str
    children: Mapping[str, str]
    options: Sequence[_Argument]
    operand: _Argument | None

    @property
    def words(self) -> list[str]:
        """What may stand in the place of its first operand."""
        if self.operand is not None and isinstance(self.operand.takes, tuple):
            return list(self.operand.takes)
        return list(self.children)


def _commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[_Command]:
    """Yield a parser's command, then those below it."""
    options, operand = list[_Argument](), None
    below: Mapping[str, argparse.ArgumentParser] = {}
    children: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            children = {each.dest: str(each.help) for each in action._choices_actions}
            below = action.choices
        elif action.option_strings:
            options.append(_argument(action))
        else:
            operand = _argument(action)
    yield _Command(path, children, options, operand)
    for name, each in below.items():
        yield from _commands(each, f"{path}/{name}")


def _argument(action: argparse.Action) -> _Argument:
    takes: Literal["nothing", "anything", "files"] | tuple[str, ...] = "anything"
    if action.nargs == 0:
        takes = "nothing"
    elif action.choices is not None:
        takes = tuple(map(str, action.choices))
    elif action.type is Path:
        takes = "files"
    elif action.type is not float and action.dest in _VALUES:
        takes = tuple(_VALUES[action.dest])
    repeats = isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*")
    return _Argument(tuple(action.option_strings), takes, str(action.help or ""), repeats)


# bash


def _bash(commands: Sequence[_Command]) -> str:
    paths = "|".join(each.path for each in commands if each.path)
    values = [line for each in commands for line in _bash_values(each)]
    words = [
        f'        "{each.path}") options="{_flags(each)}" words="{" ".join(each.words)}" '
        f"files={'yes' if each.operand and each.operand.takes == 'files' else ''} ;;"
        for each in commands
    ]
    return "\n".join(
        [
            "_dropmuon() {",
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            "    local command= options= words= files= i",
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            '        case "$command/${COMP_WORDS[i]}" in',
            f"        {paths}) command=$command/${{COMP_WORDS[i]}} ;;",
            "        esac",
            "    done",
            '    case "$command $before" in',
            *values,
            '    *) case "$command" in',
            *words,
            "        esac ;;",
            "    esac",
            "    if [[ $word == -* || -z $words$files ]]; then words=$options files=; fi",
            "    if [[ -n $files ]]; then",
            "        compopt -o filenames 2>/dev/null",
            "        local IFS=$'\\n'",
            '        COMPREPLY=($(compgen -f -- "$word"))',
            "    else",
            '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "    fi",
            "}",
            "complete -F _dropmuon dropmuon",
            "",
        ]
    )


def _bash_values(command: _Command) -> Iterator[str]:
    """Yield a case per option that is followed by a value."""
    for option in command.options:
        if option.takes == "nothing":
            continue
        cases = "|".join(f'"{command.path} {flag}"' for flag in option.flags)
        if option.takes == "files":
            yield f"    {cases}) files=yes ;;"
        elif option.takes == "anything":
            yield f"    {cases}) return ;;"
        else:
            yield f'    {cases}) words="{" ".join(option.takes)}" ;;'


def _flags(command: _Command) -> str:
    return " ".join(flag for option in command.options for flag in option.flags)


# zsh


def _zsh(commands: Sequence[_Command]) -> str:
    functions = [line for each in commands for line in _zsh_function(each)]
    return "\n".join(
        [
            "#compdef dropmuon",
            *functions,
            'if [[ $funcstack[1] == _dropmuon ]]; then _dropmuon "$@"; else',
            "    compdef _dropmuon dropmuon",
            "fi",
            "",
        ]
    )


def _zsh_function(command: _Command) -> Iterator[str]:
    """Yield the lines of the function that completes a command."""
    yield f"{_zsh_name(command.path)}() {{"
    specs = [_zsh_spec(option) for option in command.options]
    if command.operand is not None:
        start = "*" if command.operand.repeats else "1"
        specs.append(f"'{start}:{command.path.rpartition('/')[2]}:{_zsh_takes(command.operand)}'")
    if command.children:
        specs += ["'1:command:->command'", "'*::argument:->rest'"]
        yield "    local state line context; typeset -A opt_args"
    yield f"    _arguments -C {' '.join(specs)}"
    if command.children:
        listed = " ".join(f"'{name}:{_quoted(about)}'" for name, about in command.children.items())
        yield "    case $state in"
        yield f"    command) local -a commands=({listed}); _describe command commands ;;"
        yield "    rest) case $words[1] in"
        for name in command.children:
            yield f"        {name}) {_zsh_name(f'{command.path}/{name}')} ;;"
        yield "        esac ;;"
        yield "    esac"
    yield "}"


def _zsh_name(path: str) -> str:
    return "_dropmuon" + path.replace("/", "_")


def _zsh_spec(option: _Argument) -> str:
    about = _quoted(option.about).replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    follows = "" if option.takes == "nothing" else f":value:{_zsh_takes(option)}"
    star = "*" if option.repeats else ""
    return " ".join(f"'{star}{flag}[{about}]{follows}'" for flag in option.flags)


def _zsh_takes(argument: _Argument) -> str:
    if argument.takes == "files":
        return "_files"
    return f"({' '.join(argument.takes)})" if isinstance(argument.takes, tuple) else " "


# fish


def _fish(commands: Sequence[_Command]) -> str:
    lines = ["complete -c dropmuon -f"]
    for command in commands:
        where = f"-n '{_fish_condition(command)}'"
        for name, about in command.children.items():
            lines.append(f"complete -c dropmuon {where} -a {name} -d '{_quoted(about)}'")
        if command.operand is not None:
            lines.append(f"complete -c dropmuon {where} {_fish_takes(command.operand)}")
        for option in command.options:
            flags = " ".join(_fish_flag(flag) for flag in option.flags)
            follows = "" if option.takes == "nothing" else f" -r {_fish_takes(option)}"
            about = _quoted(option.about)
            lines.append(f"complete -c dropmuon {where} {flags}{follows} -d '{about}'")
    return "\n".join(lines) + "\n"


def _fish_condition(command: _Command) -> str:
    """Return what is true where this command's arguments are typed, and not those of one below."""
    if not command.path:
        return "__fish_use_subcommand"
    seen = [f"__fish_seen_subcommand_from {name}" for name in command.path[1:].split("/")]
    if command.children:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(command.children)}")
    return "; and ".join(seen)


def _fish_flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _fish_takes(argument: _Argument) -> str:
    if argument.takes == "files":
        return "-F"
    return f"-f -a '{' '.join(argument.takes)}'" if isinstance(argument.takes, tuple) else "-f"


def _quoted(text: str) -> str:
    """Return text for single quotes, in all three shells."""
    return text.replace("'", "’").replace("%%", "%").replace("\\", "/")


_SHELLS: Mapping[str, Callable[[Sequence[_Command]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
