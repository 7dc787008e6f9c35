"""Runs umad under load for a given time, in two parts, and reports the errors that clients see.

Attackers (two thirds of the time): clients that break the protocols at random, beside victims of another tenant: streams of a known text, stored
conversations, a growing history, embeddings. umad runs under its supervisor and is killed sometimes. Oracle (the rest): many well-behaved
clients on daemons with random settings; every reply is compared with that of an undisturbed daemon.

Exit status 1: a reply was wrong, a turn was lost, an answer was malformed, or the daemon crashed or leaked memory, descriptors or
requests. Memory over time is written to FOLDER/memory.csv and FOLDER/memory.svg, the daemon's log to FOLDER/umad.log.
"""

import argparse
import contextlib
import heapq
import pathlib
import random
import shutil
import sys
import threading
import time

import arena
import attackers
import reply_oracle
import stalls
import svg_chart
import uma

VICTIMS = ("stream", "chat", "agent", "embeds")
ATTACKERS = 5
COSTS = 20  # attackers with expensive requests
LONGEST = 200  # pauses of a turn that are compared with the machine's own
TURN_MINUTES = 10  # with attackers, or without
PATIENCE_S = 35  # longer than the daemon waits for the rest of a request
KILLS_S = (40, 80)  # time between two kills; after a minute without a crash the supervisor restarts without delay
# Under attack, requests, imports and exports also take memory.
BUSY_BYTES_MAX = arena.GROWTH_BYTES_MAX + (64 + 32 + 32) * arena.MIB


class Memory(threading.Thread):
    """Records the daemon's memory once a second."""

    def __init__(self, ground, path):
        super().__init__(daemon=True)
        self.ground = ground
        self.path = path
        self.began = time.monotonic()
        self.samples = []  # (seconds, bytes)
        self.kills = []  # seconds
        self.is_ended = threading.Event()

    def now(self):
        return time.monotonic() - self.began

    def run(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("seconds,rss_bytes,process\n")
            while not self.is_ended.wait(1):
                try:
                    process, rss = self.ground.pid, self.ground.memory("VmRSS")
                except (OSError, AttributeError):
                    continue  # the daemon is restarting
                self.samples.append((self.now(), rss))
                file.write(f"{self.now():.1f},{rss},{process}\n")
                file.flush()

    def chart(self):
        return svg_chart.time_line("Memory of umad under attack", "minutes", "RSS, MiB",
                                   [(s / 60, rss / arena.MIB) for s, rss in self.samples], [s / 60 for s in self.kills], "killed")


def kill_now_and_then(ground, target, memory, rng, until, problems):
    """Sends SIGKILL and waits until the next daemon answers."""
    try:
        while time.monotonic() + KILLS_S[0] < until:
            time.sleep(rng.uniform(*KILLS_S))
            target.epoch += 1
            ground.daemon.crash()
            memory.kills.append(memory.now())
            ground.daemon.wait_ready()
            target.epoch += 1
    except Exception as problem:
        problems.append(f"after a kill: {problem}")


def hostile(seed, minutes, folder, with_kills):
    """Runs attackers beside victims, prints the results and returns the problems."""
    problems = []
    account = attackers.Account()
    rng = random.Random(seed)
    with arena.Arena(is_supervised=True) as ground:
        try:
            start_rss = ground.memory("VmRSS")
            memory = Memory(ground, folder / "memory.csv")
            memory.start()
            with ground.victims(*VICTIMS) as heard:
                until = time.monotonic() + 60 * minutes
                target = ground.target()
                threads = [attackers.attack(target, account, f"{seed}/{number}", 1, until=until, patience_s=patience_s)[0]
                           for number, patience_s in enumerate([0.2] * (ATTACKERS - 1) + [PATIENCE_S])]
                if with_kills:
                    threads.append(threading.Thread(target=kill_now_and_then, args=(ground, target, memory, rng, until, problems), daemon=True))
                    threads[-1].start()
                for thread in threads:
                    thread.join(max(0, until - time.monotonic()) + 4 * uma.WAIT_S)
                    if thread.is_alive():
                        problems.append("an attacker hangs")
            ground.wait_empty()
            end_rss = ground.memory("VmRSS")
            memory.is_ended.set()
            memory.join()
            (folder / "memory.svg").write_text(memory.chart())
            problems += account.faults
            problems += [wrong for victim in heard.values() for wrong in victim["wrong"]]
            problems += check_lives(ground, memory, heard, start_rss, end_rss)
            tell(account, memory, heard, start_rss, end_rss)
            status = ground.daemon.terminate()
            if status != 0:
                problems.append(f"umad ended with {status}")
        finally:
            shutil.copy(ground.daemon.log_path, folder / "umad.log")
    return problems


def beside(attackers_count, minutes, problems):
    """Runs the victims beside so many attackers. Returns the victims' reports and the most memory, in bytes above that of the start.

    A report's `pauses_ms` are without the times in which the machine itself stood still, `whole_pauses_ms` with them.
    """
    with arena.Arena(kv={"flash_attention": "off"}) as ground:
        start_rss, top_rss = ground.memory("VmRSS"), 0
        with contextlib.ExitStack() as stack:
            watched = stack.enter_context(ground.clients("stalls.py", {}))
            heard = stack.enter_context(ground.victims(*VICTIMS))
            sent = stack.enter_context(ground.costs(attackers_count)) if attackers_count else {}
            until = time.monotonic() + 60 * minutes
            while time.monotonic() < until:
                time.sleep(1)
                top_rss = max(top_rss, ground.memory("VmRSS"))
        problems += [wrong for victim in heard.values() for wrong in victim["wrong"]]
        problems += [f"{kind}: {victim['breaks']} broken connections" for kind, victim in heard.items() if victim["breaks"]]
        print(f"  {attackers_count} attackers: {sent}; {told_stalls(watched['stalls'])}", flush=True)
        for victim in heard.values():
            longest = heapq.nlargest(LONGEST, victim.pop("pauses"), key=lambda pause: pause[1] - pause[0])
            victim["whole_pauses_ms"] = [1000 * (end - begin) for begin, end in longest]
            victim["pauses_ms"] = [1000 * stalls.without(begin, end, watched["stalls"]) for begin, end in longest]
        ground.wait_empty()
        status = ground.daemon.terminate()
        if status != 0:
            problems.append(f"umad ended with {status}")
        return heard, top_rss - start_rss


def told_stalls(found):
    longest = max((end - begin for begin, end in found), default=0)
    return f"the machine stood still {len(found)} times, for {1000 * longest:.0f} ms at most"


def costs(minutes):
    """Compares victims beside expensive requests with undisturbed ones, in turns, since a machine's speed changes within an hour.

    Prints the figures and returns the problems.
    """
    problems = []
    rounds = max(1, round(minutes / (2 * TURN_MINUTES)))
    turns = []  # (quiet, beside attackers) of each round: (the victims' reports, memory above the start)
    for number in range(rounds):
        turns.append([beside(attackers_count, minutes / rounds / 2, problems) for attackers_count in (0, COSTS)])
        for kind in VICTIMS:
            quiet, hurt = (told_turn(heard[kind]) for heard, _ in turns[-1])
            print(f"  round {number + 1}, {kind}: {quiet}; beside the attackers {hurt}", flush=True)
    for kind in VICTIMS:
        reports = [[heard[kind] for heard, _ in turn] for turn in turns]
        if not all(report["replies"] for pair in reports for report in pair):
            problems.append(f"{kind} got no reply")
            continue
        # Answers without a stream are computed at a lower priority than streams, and feel a busy machine first.
        is_stream = bool(reports[0][0]["pauses_ms"])
        for what, share, bound in (("first_ms", 0.99, 1.5 if is_stream else 2), ("pauses_ms", 1, 2)):
            quiet, hurt = (percentile([ms for pair in reports for ms in pair[at][what]], share) for at in (0, 1))
            if quiet > 0:
                name = "99th percentile of the first piece" if what == "first_ms" else "worst pause"
                told = f"{kind}: {name} {quiet:.1f} ms quiet, {hurt:.1f} ms beside the attackers: {hurt / quiet:.2f} ×"
                print("  " + told)
                if hurt > bound * quiet:
                    problems.append(f"{told}, more than {bound}")
        replies, waited = ([sum(pair[at][what] for pair in reports) for at in (0, 1)] for what in ("replies", "waited"))
        print(f"  {kind}: {replies[0]} and {replies[1]} replies, {waited[1]} refused for now")
    growths = [max(growth for _, growth in side) / arena.MIB for side in zip(*turns)]
    print(f"  memory above the start: {growths[0]:.0f} MiB quiet, {growths[1]:.0f} MiB beside them", flush=True)
    return problems


def told_turn(victim):
    told = f"first piece {percentile(victim['first_ms'], 0.99):.1f} ms"
    if pauses := victim["pauses_ms"]:
        told += f", worst pause {max(pauses):.1f} ms ({max(victim['whole_pauses_ms']):.1f} with the machine's own)"
    return told


def check_lives(ground, memory, heard, start_rss, end_rss):
    """Yields the problems with the ends and the memory of the daemons."""
    crashes = ground.metrics()["crashes_total"]
    if crashes != len(memory.kills):
        yield f"umad crashed {crashes - len(memory.kills)} times besides the {len(memory.kills)} kills: see umad.log"
    breaks = {kind: victim["breaks"] for kind, victim in heard.items() if victim["breaks"]}
    if breaks and not memory.kills:
        yield f"broken connections of victims: {breaks}"
    if uma.IS_SANITIZED:
        return  # a sanitizer keeps freed memory
    top = max(rss for _, rss in memory.samples)
    if top - start_rss > BUSY_BYTES_MAX:
        yield f"RSS grew by {(top - start_rss) / arena.MIB:.0f} MiB, more than {BUSY_BYTES_MAX / arena.MIB:.0f}"
    if end_rss - start_rss > arena.GROWTH_BYTES_MAX:
        yield f"RSS stayed {(end_rss - start_rss) / arena.MIB:.0f} MiB higher, more than {arena.GROWTH_BYTES_MAX / arena.MIB:.0f}"


def percentile(values, share):
    return sorted(values)[int(share * (len(values) - 1))] if values else 0


def tell(account, memory, heard, start_rss, end_rss):
    print(f"  {account.requests_total} requests: {dict(account.requests.most_common())}")
    print(f"  answers: {dict(account.answers.most_common())}")
    for kind, victim in heard.items():
        gaps, first = [1000 * (end - begin) for begin, end in victim["pauses"]], victim["first_ms"]
        print(f"  {kind}: {victim['replies']} replies, {victim['breaks']} interrupted, {victim['waited']} refused for now, "
              f"{len(victim['wrong'])} wrong; worst gap {max(gaps, default=0):.0f} ms (of a stream: median {percentile(gaps, 0.5):.0f}, "
              f"99th percentile {percentile(gaps, 0.99):.0f}), first piece after {max(first, default=0):.0f} ms at most "
              f"(median {percentile(first, 0.5):.0f})")
    top = max(rss for _, rss in memory.samples)
    print(f"  {len(memory.kills)} kills; RSS {start_rss / arena.MIB:.0f} MiB at the start, {top / arena.MIB:.0f} at most, "
          f"{end_rss / arena.MIB:.0f} at the end", flush=True)


def oracle(seed, minutes, seconds, verify):
    """Runs daemons with random settings, one after the other. Returns the problems."""
    until = time.monotonic() + 60 * minutes
    total = reply_oracle.Outcome()
    runs = 0
    while time.monotonic() < until:
        settings = reply_oracle.Settings.by_chance(random.Random(seed))
        if not verify:
            settings = reply_oracle.dataclasses.replace(settings, verify=0)
        models = reply_oracle.vision_models() if runs % 6 == 5 else reply_oracle.shipped_models()
        outcome = reply_oracle.run(settings, seed, models, seconds)
        print(f"  seed {seed} {models.chat.stem} {settings}\n    {outcome}", flush=True)
        reply_oracle.add(total, outcome)
        seed, runs = seed + 1, runs + 1
    print(f"  {runs} settings: {total}")
    return [f"oracle: {wrong}" for wrong in total.wrong]


def main():
    parser = argparse.ArgumentParser(prog="script/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="total minutes (default 60)")
    parser.add_argument("--seed", type=int, help="random seed, to repeat a run (default: from the clock)")
    parser.add_argument("--hostile", action="store_true",
                        help="instead: victims alone and beside 20 clients whose requests are expensive to serve (costs.py), in turns of ten minutes")
    parser.add_argument("--only", choices=("attackers", "oracle"), help="run one part for the whole time")
    parser.add_argument("--no-kills", action="store_true", help="do not kill the attacked daemon")
    parser.add_argument("--folder", type=pathlib.Path, default=uma.ROOT / "build" / "soak",
                        help="folder of memory.csv, memory.svg and umad.log (default build/soak)")
    parser.add_argument("--seconds", type=float, default=20, help="seconds of the oracle's load with the same settings (default 20)")
    parser.add_argument("--no-verify", action="store_true", help="leave scheduler.verify off in the oracle's daemons")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    options.folder.mkdir(parents=True, exist_ok=True)
    problems = []
    if options.hostile:
        problems += costs(options.minutes)
    elif options.only != "oracle":
        minutes = options.minutes * (1 if options.only else 2 / 3)
        print(f"attackers, seed {seed}, {minutes:g} minutes", flush=True)
        problems += hostile(seed, minutes, options.folder, not options.no_kills)
    if options.only != "attackers" and not options.hostile:
        minutes = options.minutes * (1 if options.only else 1 / 3)
        print(f"oracle, seed {seed}, {minutes:g} minutes", flush=True)
        problems += oracle(seed, minutes, options.seconds, not options.no_verify)
    for problem in problems[:50]:
        print("WRONG", problem[:2000])
    picture = "" if options.hostile else f"; memory over time: {options.folder / 'memory.svg'}"
    print(f"soak: {f'{len(problems)} problems' if problems else 'nothing found'}, seed {seed}{picture}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
