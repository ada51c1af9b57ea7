"""Shell completion: a script for each shell, and the candidates for the next word.

The script calls `bertjax --complete WORDS...` at every Tab, so this code imports no library. It is not done with shtab,
whose static scripts cannot complete the keys of a config or the names of recipes.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from bertjax.cli.finetune import TASKS
from bertjax.cli.verb import Verb, VerbParser
from bertjax.config.recipes import recipe_names
from bertjax.config.run import Config, FinetuneConfig

# Shell -> its script. Without candidates the shell completes file names.
SCRIPTS = {
    "bash": """\
_bertjax() {
  # COMP_WORDS is split at colons, so it is not used; an answer is the part after the last colon of the word.
  local IFS=$' \\t\\n' words=(${COMP_LINE:0:COMP_POINT}) word
  [[ ${COMP_LINE:0:COMP_POINT} == *' ' ]] && words+=('')
  word=${words[-1]}
  IFS=$'\\n'
  COMPREPLY=($(bertjax --complete "${words[@]:1}" 2>/dev/null))
  [[ $word == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
}
complete -o default -F _bertjax bertjax""",
    "zsh": """\
#compdef bertjax
_bertjax() {
  local -a found
  found=(${(f)"$(bertjax --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( ${#found} )); then compadd -Q -- $found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _bertjax bertjax""",
    "fish": """\
function __bertjax
  set -l words (commandline -opc) (commandline -ct)
  bertjax --complete $words[2..-1] 2>/dev/null
end
complete -c bertjax -a '(__bertjax)'""",
}


def candidates(
    words: Sequence[str], verbs: Collection[str], load: Callable[[str], tuple[Verb, VerbParser]]
) -> list[str]:
    """Return the candidates for the last word, which may be empty, after the others.

    `verbs` are the names of all verbs; `load` returns one with its parser. The list is empty where a file or a text is
    expected.
    """
    *before, word = words or [""]
    if not before:
        return _beginning(word, [*verbs, "--help", "--version", "--completion"])
    if before[-1] == "--completion":
        return _beginning(word, SCRIPTS)
    if before[0] not in verbs:
        return []
    return _beginning(word, _following(before[0], *load(before[0]), before[1:], word))


def _beginning(word: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(word)]


def _following(name: str, verb: Verb, parser: VerbParser, before: list[str], word: str) -> Iterator[str]:
    keys = dict(_fields(FinetuneConfig if name == "finetune" else Config, "--")) if verb.takes_keys else {}
    options = parser._option_string_actions
    if before and before[-1].startswith("--"):
        option = before[-1].replace("_", "-")
        choices = options[option].choices if option in options else keys.get(option)
        if choices or (option in options and options[option].nargs != 0) or option in keys:
            yield from choices or ()
            return
    if word.startswith("-"):
        yield from options
        yield from keys
        return
    positions = [action for action in parser._actions if not action.option_strings]
    number = sum(not argument.startswith("-") for argument in before)
    if positions and number < len(positions):
        yield from _values(positions[number], name)


def _values(action: argparse.Action, verb: str) -> Sequence[str]:
    """The known values of a positional argument."""
    if action.dest == "config":
        return TASKS if verb == "finetune" else recipe_names()
    if action.dest == "name" and verb == "recipes":
        return recipe_names()
    return tuple(action.choices or ())


def _fields(config: type, before: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys of a config as options, with their choices, if any."""
    kinds: dict[str, type] = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        name, kind = f"{before}{field.name.replace('_', '-')}", kinds[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _fields(kind, f"{name}.")
        else:
            yield name, tuple(map(str, typing.get_args(kind))) if typing.get_origin(kind) is typing.Literal else ()
