#!/usr/bin/env python3
"""Tests of help_text.py on what two versions of CLI11 print."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import help_text  # noqa: E402

# The version of Debian 12, and that of Debian 14.
OLDER = """Fetch a model
Usage: somewhere/bin/prog pull [OPTIONS] source [SUBCOMMAND]

Positionals:
  source TEXT REQUIRED        What to fetch
  texts TEXT ...              More of it

Options:
  -h,--help                   Print this help message and exit
  --on-full TEXT:{error,shift}
                              What then
  --stall-timeout INT:INT in [1 - 3600]=30
                              Seconds without a byte
  --top INT:POSITIVE          So many
  --image TEXT ...            Images: files, or addresses
  --no-warm-up{false}         do not begin

Subcommands:
  again                       Once more


It goes on
where it ended.
Exit status: 0 success,
1 usage.
Environment: NAME is read."""
NEWER = """Fetch a model 


prog pull [OPTIONS] source [SUBCOMMAND]


POSITIONALS:
  source TEXT REQUIRED        What to fetch 
  texts TEXT ...              More of it 

OPTIONS:
  -h,     --help              Print this help message and exit 
          --on-full TEXT:{error,shift} 
                              What 
                              then 
          --stall-timeout INT:INT in [1 - 3600] [30]  
                              Seconds without a byte 
          --top INT:POSITIVE  So many 
          --image TEXT ...    Images: files, or addresses 
          --no-warm-up{false} do not begin 

SUBCOMMANDS:
  again                       Once more 


It goes on 
where it ended. 
Exit status: 0 success, 
1 usage. 
Environment: NAME is read. 
"""


class Parse(unittest.TestCase):
    def check_both(self, check):
        for name, text in (("older", OLDER), ("newer", NEWER)):
            with self.subTest(name):
                check(help_text.parse(("prog", "pull"), text))

    def test_options(self):
        def check(command):
            found = {option.long: option for option in command.options}
            self.assertEqual(["--help", "--on-full", "--stall-timeout", "--top", "--image", "--no-warm-up"], list(found))
            self.assertEqual(["-h", "--help"], found["--help"].names)
            self.assertEqual(("", "Print this help message and exit"), (found["--help"].value, found["--help"].help))
            self.assertEqual(["error", "shift"], found["--on-full"].choices)
            self.assertEqual("What then", found["--on-full"].help)
            timeout = found["--stall-timeout"]
            self.assertEqual(("INT", "1 to 3600", "30"), (timeout.value, timeout.limits, timeout.default))
            self.assertEqual(("INT", "", ""), (found["--top"].value, found["--top"].limits, found["--top"].default))
            self.assertTrue(found["--image"].takes_many)
            self.assertEqual(("", "do not begin"), (found["--no-warm-up"].value, found["--no-warm-up"].help))
        self.check_both(check)

    def test_positionals_and_commands(self):
        def check(command):
            self.assertEqual(["source", "texts"], [each.long for each in command.positionals])
            self.assertEqual([("prog", "pull", "again")], [each.path for each in command.commands])
            self.assertEqual("Once more", command.commands[0].summary)
        self.check_both(check)

    def test_what_is_around_them(self):
        def check(command):
            self.assertEqual("Fetch a model", command.summary)
            self.assertEqual("[OPTIONS] source [SUBCOMMAND]", command.usage)
            self.assertEqual(["It goes on where it ended.", "Exit status: 0 success, 1 usage.", "Environment: NAME is read."],
                             command.footer)
        self.check_both(check)


if __name__ == "__main__":
    unittest.main()
