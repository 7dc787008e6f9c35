"""The load of reply_oracle.py for as long as is wanted, with settings by chance. script/soak --help"""

import argparse
import random
import sys
import time

import reply_oracle


def main():
    parser = argparse.ArgumentParser(prog="script/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="of the first settings, for a repetition (default: by the clock)")
    parser.add_argument("--seconds", type=float, default=20, help="of load with the same settings (default 20)")
    parser.add_argument("--no-verify", action="store_true", help="leave scheduler.verify off")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    until = time.monotonic() + 60 * options.minutes
    total = reply_oracle.Outcome()
    runs = 0
    while time.monotonic() < until:
        settings = reply_oracle.Settings.by_chance(random.Random(seed))
        if options.no_verify:
            settings = reply_oracle.dataclasses.replace(settings, verify=0)
        models = reply_oracle.vision_models() if runs % 6 == 5 else reply_oracle.shipped_models()
        outcome = reply_oracle.run(settings, seed, options.seconds, models)
        print(f"seed {seed} {models.chat.stem} {settings}\n  {outcome}", flush=True)
        for wrong in outcome.wrong:
            print("  WRONG", wrong, flush=True)
        reply_oracle.add(total, outcome)
        seed, runs = seed + 1, runs + 1
    print(f"{runs} settings: {total}")
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
