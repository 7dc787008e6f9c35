"""Completions and manual pages that the build makes from --help: they have everything that a program's help lists.

The help is read in another way than in packaging/help_text.py, to find what that overlooks.
"""

import re
import subprocess
import unittest

import uma

SHARE = uma.BUILD / "share"
PROGRAMS = ("umad", "uma-cli", "uma-bench")


def help_of(path):
    result = subprocess.run([uma.BUILD / "bin" / path[0], *path[1:], "--help"], capture_output=True, text=True, timeout=uma.WAIT_S,
                            check=True, stdin=subprocess.DEVNULL, env=uma.clean_environment())
    return result.stdout


def flags_of(text):
    """The flags that begin a line of the help."""
    return set(re.findall(r"^ +(?:-\w, *)?(--[a-z0-9-]+)", text, re.MULTILINE))


def commands_of(text):
    below = re.split(r"^subcommands:$", text, flags=re.MULTILINE | re.IGNORECASE)
    return re.findall(r"^  (\w+)", below[1].split("\n\n")[0], re.MULTILINE) if len(below) > 1 else []


def all_commands(path):
    """The path and the help of every command of a program."""
    text = help_of(path)
    found = [(path, text)]
    for name in commands_of(text):
        found += all_commands((*path, name))
    if path == ("umad",):
        found += all_commands((*path, "tune")) + all_commands((*path, "check"))
    return found


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = [command for program in PROGRAMS for command in all_commands((program,))]

    def bash(self, *words):
        """The completions that bash offers for the last of the words."""
        program = words[0]
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"')
        file = SHARE / "bash-completion" / "completions" / program
        result = subprocess.run(["bash", "-uc", script, "bash", file, *words], capture_output=True, text=True, timeout=uma.WAIT_S,
                                check=True, stdin=subprocess.DEVNULL, cwd=SHARE)
        self.assertEqual("", result.stderr)
        return set(result.stdout.split())

    def test_every_flag_and_command_in_bash(self):
        for path, text in self.commands:
            with self.subTest(" ".join(path)):
                self.assertEqual(flags_of(text), self.bash(*path, "--"))
                commands = set(commands_of(text)) | ({"tune", "check", "key", "devices"} if path == ("umad",) else set())
                if commands:
                    self.assertEqual(commands, self.bash(*path, ""))

    def test_values_in_bash(self):
        self.assertEqual({"error", "shift"}, self.bash("uma-cli", "chat", "--on-full", ""))
        self.assertEqual({"truncate"}, self.bash("uma-cli", "embed", "--long-input", "t"))
        self.assertIn("man", self.bash("uma-cli", "--socket", ""), "a file")
        self.assertEqual(set(), self.bash("uma-cli", "--session", ""), "the user's own word")
        self.assertEqual({"--system", "--session", "--stop", "--seed", "--socket"}, self.bash("uma-cli", "--usage", "chat", "--s"))
        self.assertEqual({"new"}, self.bash("umad", "key", ""))

    def test_every_flag_and_command_in_zsh(self):
        for path, text in self.commands:
            with self.subTest(" ".join(path)):
                file = (SHARE / "zsh" / "vendor-completions" / f"_{path[0]}").read_text()
                function = "_" + "_".join(path).replace("-", "_")
                body = re.search(rf"^{function}\(\) \{{\n(.*?)^\}}", file, re.MULTILINE | re.DOTALL).group(1)
                self.assertEqual(flags_of(text), set(re.findall(r"^ +'\*?(--[a-z0-9-]+)\[", body, re.MULTILINE)))
                for command in commands_of(text):
                    self.assertRegex(body, rf"\n    '{command}:")
                    self.assertRegex(body, rf"\n        {command}\) {function}_{command} ;;")

    def test_zsh_reads_them(self):
        for program in PROGRAMS:
            subprocess.run(["zsh", "-n", SHARE / "zsh" / "vendor-completions" / f"_{program}"], check=True, timeout=uma.WAIT_S)


class Manuals(unittest.TestCase):
    def test_every_flag_and_command(self):
        for program in PROGRAMS:
            page = (SHARE / "man" / "man1" / f"{program}.1").read_text().replace("\\-", "-")
            for path, text in all_commands((program,)):
                with self.subTest(" ".join(path)):
                    if len(path) > 1:
                        _, found, page_of_command = page.partition(f"\n.SS {' '.join(path)} ")
                        self.assertTrue(found)
                        page_of_command = page_of_command.partition("\n.SS ")[0]
                    else:
                        page_of_command = page.partition("\n.SH OPTIONS")[2].partition("\n.SH ")[0]
                    shared = set() if len(path) == 1 else {"--help"} | ({"--socket"} if program == "uma-cli" else set())
                    self.assertLessEqual(flags_of(text) - shared, set(re.findall(r"\\fB(--[a-z0-9-]+)\\fR", page_of_command)))

    def test_groff_reads_them_without_a_warning(self):
        for program in PROGRAMS:
            result = subprocess.run(["groff", "-man", "-ww", "-Tutf8", SHARE / "man" / "man1" / f"{program}.1"], capture_output=True,
                                    text=True, timeout=uma.WAIT_S, check=True)
            self.assertEqual("", result.stderr)
            self.assertIn("this help message", result.stdout)


if __name__ == "__main__":
    unittest.main()
