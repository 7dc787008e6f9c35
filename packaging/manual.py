#!/usr/bin/env python3
"""Writes a program's manual page, man(7), from its --help and what is said below: manual.py PROGRAM VERSION > PROGRAM.1"""

import datetime
import os
import re
import sys

import help_text

# Paragraphs of the help that are sections of a manual page.
SECTIONS = {"Exit status": "EXIT STATUS", "Environment": "ENVIRONMENT", "Signals": "SIGNALS", "Example": "EXAMPLES"}
ORDER = ("ENVIRONMENT", "FILES", "SIGNALS", "EXIT STATUS", "EXAMPLES", "SEE ALSO")

# What the help does not say; roff.
FILES = {
    "umad": r"""
.TP
.I /etc/uma\-serve/umad.yaml
Configuration of the system's daemon, the unit umad.service.
.TP
.I /var/lib/uma\-serve/
Its models and data.
.TP
.I ~/.config/uma/umad.env
Environment of a user's own unit, one variable per line: UMA_MODEL=NAME.
.TP
.I ~/.config/uma/models.yaml
Settings of models, by name.
.TP
.I ~/.local/share/uma/models/
Models that uma\-cli pull has downloaded.
.TP
.I ~/.local/state/uma/
Conversations, their states, and measured profiles.
""",
    "uma-cli": r"""
.TP
.I $XDG_RUNTIME_DIR/uma.sock
The socket of a daemon that was started by hand.
.TP
.I /tmp/uma.sock
The same, where that variable is not set.
.TP
.I $XDG_RUNTIME_DIR/uma\-serve/umad.sock
The socket of the user's own unit, which starts the daemon when somebody connects.
.TP
.I /run/uma\-serve/umad.sock
The socket of the system's unit, for members of the group uma\-serve.
.TP
.I ~/.local/state/uma/history
The lines typed in chats.
""",
}
# In place of what the help has in lines that only a terminal keeps apart.
EXAMPLES = {
    "umad": r"""
.TP
Serve uma\-tiny, and talk to it:
umad & uma\-cli chat
.TP
Serve a downloaded model:
uma\-cli pull OWNER/REPO:q4_k_m; umad \-\-model NAME
.TP
The user's own daemon, which its first client starts:
systemctl \-\-user enable \-\-now umad.socket
.TP
The system's daemon with HTTP for every user of the machine:
systemctl stop umad.socket umad; systemctl enable \-\-now umad\-http.socket; systemctl start umad.socket
""",
    "uma-cli": r"""
.TP
Ask about a file:
cat report.txt | uma\-cli \-\-prompt "Summarise:"
.TP
Chat, leave, and continue later:
uma\-cli chat \-\-session work
.TP
Vectors of the lines of a file:
uma\-cli embed \-\-file sentences.txt > vectors.jsonl
""",
    "uma-bench": r"""
.TP
Four streams at once on a daemon's socket:
uma\-bench burst \-\-socket /tmp/uma.sock \-\-streams 4
""",
}
SEE_ALSO = {
    "umad": ("uma\\-cli(1), uma\\-bench(1), systemctl(1)", "INSTALL.md, protocol/README.md, MODELS.md, TUNING.md and METRICS.md"),
    "uma-cli": ("umad(1)", "protocol/README.md and MODELS.md"),
    "uma-bench": ("umad(1)", "BENCHMARKS.md"),
}
EXIT_STATUS = {
    "umad": "0 stopped regularly; 1 a mistake in flags or configuration, a model that cannot be loaded, a socket in use.",
}


def roff(text):
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def sentence(text):
    return roff(text[:1].upper() + text[1:].rstrip(".")) + "."


def value_of(option):
    if option.choices:
        return "|".join(option.choices)
    return option.value + (" ..." if option.takes_many else "")


def described(option):
    """The description, with limits and default where the program checks them itself."""
    facts = [fact for fact in (option.limits, f"default {option.default}" if option.default else "") if fact]
    text = option.help + (f" ({', '.join(facts)})" if facts else "")
    return text


def option_lines(option):
    heads = ", ".join(rf"\fB{roff(name)}\fR" for name in option.names)
    value = value_of(option)
    return [".TP", heads + (rf" \fI{roff(value)}\fR" if value else ""), sentence(described(option))]


def positional_lines(option):
    return [".TP", rf"\fI{roff(option.long)}\fR" + (" ..." if option.takes_many else ""), sentence(described(option))]


def split_footer(footer):
    """Paragraphs of the description, and those of sections by their titles."""
    description, sections = [], {}
    for paragraph in footer:
        label, _, rest = paragraph.partition(":")
        if label in SECTIONS:
            sections[SECTIONS[label]] = rest.strip()
        else:
            description.append(paragraph)
    return description, sections


def usage_lines(command):
    words = " ".join(command.words)
    usage = f"{words} NAME" if words else command.usage
    return [".br", rf"\fB{roff(command.name)}\fR {roff(usage)}".rstrip()]


def command_lines(command, global_options):
    """One command below the program, as a subsection."""
    lines = [f".SS {roff(command.name)} {roff(' '.join([*command.words, 'NAME']) if command.words else command.usage)}",
             sentence(command.summary)]
    for positional in command.positionals:
        lines += positional_lines(positional)
    for option in command.options:
        if option.long not in global_options:
            lines += option_lines(option)
    for paragraph in command.footer:
        lines += [".PP", roff(paragraph)]
    return lines


def page(command, version):
    name = command.path[0]
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    date = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%d") if seconds else ""
    summary = command.summary.rstrip(".")
    description, sections = split_footer(command.footer)
    lines = ['.\\" Made from the program\'s --help by packaging/manual.py.',
             f'.TH {roff(name.upper())} 1 "{date}" "uma\\-serve {roff(version)}" "uma\\-serve"',
             ".nh", ".ad l",  # names are not to be broken
             ".SH NAME", rf"{roff(name)} \- {roff(summary[:1].lower() + summary[1:])}",
             ".SH SYNOPSIS"]
    for each in command.walk():
        lines += usage_lines(each)
    lines += [".SH DESCRIPTION", sentence(summary)]
    for paragraph in description:
        lines += [".PP", roff(paragraph)]
    lines += [".SH OPTIONS"]
    for option in command.options:
        lines += option_lines(option)
    below = [each for each in command.walk() if each is not command]
    if below:
        shared = {"--help"} | ({"--socket"} if name == "uma-cli" else set())
        lines += [".SH COMMANDS"]
        if name == "uma-cli":
            lines += [r"Every command that talks to the daemon takes \fB\-\-socket\fR too."]
        for each in below:
            lines += command_lines(each, shared)
    if name in EXIT_STATUS:
        sections.setdefault("EXIT STATUS", EXIT_STATUS[name])
    for title, texts in (("FILES", FILES), ("EXAMPLES", EXAMPLES)):
        if name in texts:
            sections[title] = texts[name]
    sections["SEE ALSO"] = None
    for title in ORDER:
        if title not in sections:
            continue
        lines += [f".SH {title}"]
        if title in ("FILES", "EXAMPLES"):
            lines += sections[title].strip().splitlines()
        elif title == "SEE ALSO":
            pages, documents = SEE_ALSO[name]
            lines += [f"{pages}; {documents} in {roff('/usr/share/doc/uma-serve')}."]
        else:
            lines += [roff(sections[title])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: manual.py PROGRAM VERSION")
    print(page(help_text.read(sys.argv[1]), sys.argv[2]), end="")
