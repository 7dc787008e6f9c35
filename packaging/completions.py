#!/usr/bin/env python3
"""Writes a program's completions from its --help: completions.py bash|zsh PROGRAM > FILE

Both complete commands at any depth, the flags of each, values that are one of a few words, and files.
"""

import os
import sys

import help_text

# Flags whose values are files or folders; everywhere else a value is the user's own words.
FILE_FLAGS = {"--audio", "--config", "--csv", "--data-dir", "--draft-model", "--file", "--http-keys", "--http-socket", "--image", "--mmproj",
              "--out", "--socket"}
# The same, of one program: the daemon's model is a file, a client's a name.
FILE_FLAGS_OF = {"umad": {"--model"}}
FILE_POSITIONALS = {"file", "image", "source"}


def takes_file(command, option):
    return option.long in FILE_FLAGS | FILE_FLAGS_OF.get(command.path[0], set())


def has_file_positional(command):
    return any(positional.long in FILE_POSITIONALS for positional in command.positionals)


def bash_function(command):
    return "_" + "_".join(command.path).replace("-", "_")


def bash(root):
    program = root.path[0]
    lines = [f"# Completions of {program} for bash, made from its --help by packaging/completions.py.",
             f"{bash_function(root)}() {{",
             "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} path= commands= flags= with_value= i",
             "  COMPREPLY=()"]
    lines += ["  # The command that the words before the cursor name.",
              "  for ((i = 1; i < COMP_CWORD; ++i)); do",
              '    case "$path ${COMP_WORDS[i]}" in']
    for command in root.walk():
        if command is not root:
            lines.append(f'      " {" ".join(command.path[1:])}") path="{" " + " ".join(command.path[1:])}" ;;')
    lines += ["    esac", "  done", '  case "$path" in']
    for command in root.walk():
        path = "".join(f" {word}" for word in command.path[1:])
        lines.append(f'    "{path}")')
        lines.append(f'      commands="{" ".join([*(each.path[-1] for each in command.commands), *command.words])}"')
        lines.append(f'      flags="{" ".join(name for option in command.options for name in option.names)}"')
        cases = []
        for option in command.options:
            if not option.value:
                continue
            if option.choices:
                action = f'COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$word"))'
            elif takes_file(command, option):
                action = 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$word"))'
            else:
                action = ":"
            cases.append(f'        {"|".join(option.names)}) {action}; return ;;')
        if cases:
            lines += ['      case "$before" in', *cases, "      esac"]
        if has_file_positional(command):
            lines.append("      with_value=files")
        lines.append("      ;;")
    lines += ["  esac",
              '  if [[ $word == -* ]]; then',
              '    COMPREPLY=($(compgen -W "$flags" -- "$word"))',
              '  elif [[ -n $commands ]]; then',
              '    COMPREPLY=($(compgen -W "$commands" -- "$word"))',
              '  elif [[ -n $with_value ]]; then',
              '    compopt -o filenames 2>/dev/null',
              '    COMPREPLY=($(compgen -f -- "$word"))',
              "  fi",
              "}",
              f"complete -F {bash_function(root)} {program}"]
    return "\n".join(lines) + "\n"


def zsh_quoted(text):
    """Text within single quotes of _arguments or _describe."""
    for character in "\\[]:":
        text = text.replace(character, "\\" + character)
    return text.replace("'", "'\\''")


def zsh_option(command, option):
    if option.choices:
        value = f":{option.value}:({' '.join(option.choices)})"
    elif takes_file(command, option):
        value = f":{option.value}:_files"
    else:
        value = f":{option.value}: " if option.value else ""
    star = "*" if option.takes_many else ""
    return [f"'{star}{name}[{zsh_quoted(option.help)}]{value}'" for name in option.names]


def zsh_function(command):
    """One function a command; one with commands below it hands over to theirs."""
    specs = [spec for option in command.options for spec in zsh_option(command, option)]
    lines = [f"{bash_function(command)}() {{"]
    if command.commands or command.words:
        specs += ["'1: :->command'", "'*:: :->arguments'"]
        lines += ["  local state line", "  local -a commands", "  commands=("]
        lines += [f"    '{each.path[-1]}:{zsh_quoted(each.summary)}'" for each in command.commands]
        lines += [f"    '{word}'" for word in command.words]
        lines += ["  )"]
    elif command.positionals:
        specs += [f"'*:{positional.long}:{'_files' if positional.long in FILE_POSITIONALS else ' '}'"
                  for positional in command.positionals[-1:]]
    lines += ["  _arguments -C \\"] + [f"    {spec} \\" for spec in specs[:-1]] + [f"    {specs[-1]}"]
    if command.commands or command.words:
        lines += ["  case $state in", "    command) _describe command commands ;;"]
        if command.commands:
            lines += ["    arguments)", "      case $words[1] in"]
            lines += [f"        {each.path[-1]}) {bash_function(each)} ;;" for each in command.commands]
            lines += ["      esac", "      ;;"]
        lines += ["  esac"]
    return lines + ["}"]


def zsh(root):
    program = root.path[0]
    lines = [f"#compdef {program}", f"# Completions of {program} for zsh, made from its --help by packaging/completions.py."]
    for command in reversed(list(root.walk())):
        lines += zsh_function(command)
    lines += [f'{bash_function(root)} "$@"']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("bash", "zsh"):
        sys.exit("usage: completions.py bash|zsh PROGRAM")
    print((bash if sys.argv[1] == "bash" else zsh)(help_text.read(sys.argv[2])), end="")
