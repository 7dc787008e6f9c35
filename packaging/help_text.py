"""Reads what a program of ours prints for --help into values: what its manual page and its completions are made from.

The text is CLI11's. Its versions differ in spaces, in the case of headings, in how defaults are written, and in whether they wrap
lines; all of them are read.
"""

import dataclasses
import os
import re
import subprocess

# Commands that a program reads without listing them under "Subcommands".
UNLISTED = {"umad": {"tune": "Measure and store the fastest settings for a model on this machine",
                     "check": "Examine the installation, and the daemons that share its database",
                     "devices": "List the devices that can compute models",
                     "key": "Make a key for an HTTP client, and the line for the file of --http-keys"}}
# Of those, what has no --help of its own, and the words that follow it.
WITHOUT_HELP = {("umad", "key"): ("new",)}

HEADINGS = {"options": "options", "positionals": "positionals", "subcommands": "commands"}
HELP_OF_HELP = "Print this help message and exit"  # begins in the column of all descriptions
ENTRY_INDENT_MAX = 16  # what is indented further continues the entry above it


@dataclasses.dataclass
class Option:
    names: list[str]  # "-h", "--help"; a positional argument has one, without dashes
    value: str = ""  # "TEXT"; empty: it takes none
    choices: list[str] = dataclasses.field(default_factory=list)
    limits: str = ""  # "1 to 3600"
    default: str = ""
    takes_many: bool = False
    help: str = ""

    @property
    def long(self):
        return self.names[-1]


@dataclasses.dataclass
class Command:
    path: tuple[str, ...]  # ("uma-cli", "sessions", "export")
    summary: str = ""
    usage: str = ""  # "[OPTIONS] session [file]"
    options: list[Option] = dataclasses.field(default_factory=list)
    positionals: list[Option] = dataclasses.field(default_factory=list)
    words: tuple[str, ...] = ()  # fixed words that follow it
    footer: list[str] = dataclasses.field(default_factory=list)  # paragraphs
    commands: list["Command"] = dataclasses.field(default_factory=list)

    @property
    def name(self):
        return " ".join(self.path)

    def walk(self):
        """The command and all below it, parents first."""
        yield self
        for command in self.commands:
            yield from command.walk()


def parse_option(head, text):
    """An entry such as "--long-input TEXT:{refuse,truncate}", "-h,--help", "--seed UINT=1", "texts TEXT ..."."""
    head = re.sub(r",\s+", ",", head.strip())
    names, _, rest = head.partition(" ")
    option = Option(names=re.sub(r"\{\w+\}$", "", names).split(","), help=" ".join(text.split()))
    rest = rest.replace("REQUIRED", "").strip()
    if rest.endswith("..."):
        option.takes_many, rest = True, rest[:-3].strip()
    if match := re.search(r"(?:=(\S+)|\s\[([^\]]*)\])$", rest):
        # "[1 - 3600]" is the range, not the default.
        if match.group(1) is not None or not rest.endswith(f"in [{match.group(2)}]"):
            option.default = match.group(1) or match.group(2)
            rest = rest[:match.start()]
    option.value, _, check = rest.strip().partition(":")
    if match := re.fullmatch(r"\{(.*)\}", check):
        option.choices = match.group(1).split(",")
    elif match := re.fullmatch(r"\w+ in \[(\S+) - (\S+)\]", check):
        option.limits = f"{match.group(1)} to {match.group(2)}"
    return option


def sections_of(text):
    """The lines of the help by their headings: "", "options", "positionals", "commands", "footer"."""
    sections = {"": []}
    current = ""
    for line in text.splitlines():
        line = line.rstrip()
        heading = HEADINGS.get(line.rstrip(":").lower()) if line.endswith(":") else None
        if heading:
            current = heading
            sections[current] = []
        elif current and line and not line.startswith(" "):
            current = "footer"
            sections.setdefault(current, []).append(line)
        else:
            sections[current].append(line)
    return sections


def split_entry(line, column):
    """An entry's head and the beginning of its description, which is at `column` unless the head is too long for it."""
    parts = re.split(r"\s{2,}", re.sub(r",\s+-", ",-", line.strip()), maxsplit=1)
    if len(parts) == 2:
        return parts
    head, text = line[:column].rstrip(), line[column:]
    if len(line) > column > len(head) and not text.startswith(("in [", "[")) and head.count("[") == head.count("]"):
        return [head.strip(), text]
    return [parts[0], ""]


def entries_of(lines, column):
    """Pairs of an entry's head and its description."""
    entries = []
    for line in filter(None, lines):
        indent = len(line) - len(line.lstrip())
        if indent >= ENTRY_INDENT_MAX and entries:
            entries[-1][1] += " " + line.strip()
            continue
        entries.append(split_entry(line, column))
    return entries


def paragraphs_of(lines):
    """Lines that belong together, joined. A line of the form "Word: …" begins a paragraph."""
    paragraphs = [""]
    for line in lines:
        if not line or re.match(r"[A-Z][a-z]+( [a-z]+)?: ", line):
            paragraphs.append("")
        paragraphs[-1] = f"{paragraphs[-1]} {line}".strip()
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph]


def parse(path, text):
    """The help of the command `path`, without the commands below it; their names and summaries are there."""
    sections = sections_of(text)
    head = [line.strip() for line in sections[""] if line.strip()]
    usage = next(line for line in head if re.match(rf"(Usage: )?\S*{re.escape(path[0])}\b.*\[OPTIONS\]", line))
    summary = " ".join(head[:head.index(usage)])
    command = Command(path=path, summary=re.sub(rf"^{re.escape(' '.join(path))}: ", "", summary))
    command.usage = usage[usage.index("[OPTIONS]"):]
    column = next(line.index(HELP_OF_HELP) for line in text.splitlines() if HELP_OF_HELP in line)
    command.options = [parse_option(*entry) for entry in entries_of(sections.get("options", []), column)]
    command.positionals = [parse_option(*entry) for entry in entries_of(sections.get("positionals", []), column)]
    command.footer = paragraphs_of(sections.get("footer", []))
    for name, summary in entries_of(sections.get("commands", []), column):
        command.commands.append(Command(path=(*path, name), summary=summary))
    return command


def ask(program, *words):
    """What `program words… --help` prints, in one column of text whatever the terminal."""
    result = subprocess.run([program, *words, "--help"], capture_output=True, text=True, timeout=60, check=True,
                            env={**os.environ, "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL)
    return result.stdout


def read(program, words=()):
    """The whole tree of commands of a program."""
    name = os.path.basename(program)
    command = parse((name, *words), ask(program, *words))
    if not words:
        command.commands += [Command(path=(name, word), summary=summary) for word, summary in UNLISTED.get(name, {}).items()]
    for index, below in enumerate(command.commands):
        if below.path in WITHOUT_HELP:
            below.words = WITHOUT_HELP[below.path]
        else:
            summary = below.summary
            command.commands[index] = read(program, below.path[1:])
            command.commands[index].summary = summary
    return command
