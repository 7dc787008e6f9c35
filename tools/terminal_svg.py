#!/usr/bin/env python3
"""Draws the README's picture: runs umad and a few uma-cli commands, and prints the terminal session as SVG.

Usage: tools/terminal_svg.py BIN_DIR > docs/terminal.svg
"""
import html
import os
import re
import signal
import subprocess
import sys
import tempfile

COLUMNS = 96
SHOWN = ("umad ", "socket", "model ", "ready")  # lines of umad's log that begin with these are shown
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.0, 18, 18


def wrapped(line):
    """Divides a line as a terminal of COLUMNS columns does."""
    return [line[i:i + COLUMNS] for i in range(0, len(line), COLUMNS)] or [""]


def record(bin_dir):
    """Runs the session and returns its lines as (kind, text). The kinds are command, output and note."""
    lines = []
    folder = tempfile.mkdtemp()
    socket = os.path.join(folder, "uma.sock")
    environment = dict(os.environ, UMA_SOCKET=socket, UMA_DATA_DIR=folder, UMA_HTTP="off")

    def command(shown, arguments):
        lines.append(("command", "$ " + shown))
        done = subprocess.run([os.path.join(bin_dir, arguments[0])] + arguments[1:], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=True)
        for text in (done.stdout, done.stderr):
            plain = re.sub(r", seed \d+$", "", text.rstrip("\n"), flags=re.MULTILINE)
            lines.extend(("output", part) for line in plain.splitlines() for part in wrapped(line))

    lines.append(("command", "$ umad &"))
    daemon = subprocess.Popen([os.path.join(bin_dir, "umad")], env=environment, text=True, stderr=subprocess.PIPE)
    prefix = os.path.dirname(os.path.abspath(bin_dir))
    try:
        for line in daemon.stderr:
            clean = line.rstrip("\n").replace(f" --socket {socket}", "").replace(socket, "/tmp/uma.sock").replace(prefix, "/usr/local")
            if re.sub(r"^\w+ +", "", clean[24:]).startswith(SHOWN):
                lines.extend(("note", part) for part in wrapped(clean[24:]))
            if "ready after" in line:
                break
        for options, prompt in (("", "What happens if I disconnect?"), ("--session work --usage ", "Hello! My name is Ada."),
                                ("--session work --usage ", "What is 17 + 8?"), ("--session work --usage ", "What is my name?")):
            command(f'uma-cli {options}--prompt "{prompt}"', ["uma-cli", *options.split(), "--prompt", prompt])
        command("uma-cli sessions", ["uma-cli", "sessions"])
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)
    return lines


def svg(lines):
    width = MARGIN * 2 + COLUMNS * CHARACTER_WIDTH
    height = MARGIN * 2 + len(lines) * LINE_HEIGHT
    colours = {"command": "#9ece6a", "output": "#d5d9e5", "note": "#7a88b8"}
    rows = []
    for number, (kind, text) in enumerate(lines):
        y = MARGIN + (number + 0.75) * LINE_HEIGHT
        rows.append(f'<text x="{MARGIN}" y="{y:.0f}" fill="{colours[kind]}" xml:space="preserve">{html.escape(text)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1a1b26"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13">',
        *rows, "</g>", "</svg>"])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    print(svg(record(sys.argv[1])))


if __name__ == "__main__":
    main()
