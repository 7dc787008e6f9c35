#!/usr/bin/env python3
"""Measures one daemon with many models, in three parts.

registered  hundreds of models are known and three are used: memory and start, compared with a daemon that knows only three;
            the time of a model's first request, of later ones, and of requests with a reload before each.
pressure    memory for two of three models under a mixed load: failures, loads per minute, memory, turns of sessions.
together    a chat stream alone, then beside embeddings, reranking and images in the same daemon: time between its tokens.
Exit codes: 0 measured, 1 usage, 2 a promise was broken: a request failed for another reason than its deadline, a turn was lost,
more memory was reserved than allowed, or more was used than this limit, a daemon without models and 64 MiB together.
"""

import argparse
import base64
import contextlib
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import pictures  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

MIB = 1 << 20
WORDS = "the of and a to in is you that it he was for on are as with his they at".split()


def text_of(words, rng):
    return " ".join(rng.choices(WORDS, k=words))


def copies(folder, model, names):
    for name in names:
        shutil.copyfile(model, folder / f"{name}.gguf")


def daemon_of(folder, first, settings, *flags):
    return uma.Daemon(folder / f"{first}.gguf", *flags, config=f"models_dirs: [{folder}]\n{settings}")


def ok(reply):
    if reply.last["event"] != "eos":
        raise AssertionError(f"pool: {reply.last}")
    return reply


# --- registered

def start_and_list(folder, names):
    """Starts a daemon and sends each model a request; returns the figures, with the daemon's memory."""
    daemon = daemon_of(folder, names[0], "kv: {cells: 2048}\nslots: 2\n")
    began = time.monotonic()
    with daemon:
        started = (time.monotonic() - began) * 1000
        with daemon.client(600) as client:
            known = len(client.models())
            times = []
            for _ in range(20):
                began = time.monotonic()
                client.models()
                times.append((time.monotonic() - began) * 1000)
            for name in names:
                ok(client.generate("a first request", model=name, max_tokens=4))
            return {"models": known, "start_ms": started, "list_ms": statistics.median(times), "resident": daemon.rss_bytes()}


def registered(options):
    names = ["used-0", "used-1", "used-2"]
    with tempfile.TemporaryDirectory(prefix="uma-pool-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        copies(folder, options.model, names)
        few = [start_and_list(folder, names) for _ in range(options.rounds)]
        for i in range(options.count - len(names)):
            os.link(folder / "used-0.gguf", folder / f"unused-{i:04}.gguf")
        many = [start_and_list(folder, names) for _ in range(options.rounds)]
        for label, figures in (("few", few), ("many", many)):
            middle = {key: statistics.median(each[key] for each in figures) for key in figures[0]}
            print(f"{label:<5} {middle['models']:5.0f} models known: ready after {middle['start_ms']:6.1f} ms, listed in "
                  f"{middle['list_ms']:5.2f} ms, {middle['resident'] / MIB:7.1f} MiB with three in use", flush=True)
        ratio = statistics.median(b["resident"] / a["resident"] for a, b in zip(few, many))
        print(f"memory with {options.count} known / with three known: {ratio:.3f}")

        reloaded = []
        with daemon_of(folder, names[0], "kv: {cells: 2048}\nslots: 2\n") as daemon, daemon.client(600) as client:
            def request(model):
                began = time.monotonic()
                reply = ok(client.generate("a request", model=model, max_tokens=1, progress=True))
                return (time.monotonic() - began) * 1000, reply
            took, reply = request(names[1])
            print(f"first request to a model that is not loaded: {took:.0f} ms, "
                  f"{sum(event.get('stage') == 'loading' for event in reply.events)} progress events before its token")
            warm = [request(names[1])[0] for _ in range(10)]
            for _ in range(10):
                reloaded.append(request(names[2])[0])
                uma.until(lambda: client.call(type="unload_model", model=names[2])["event"] == "ack", "it is unloaded")
        print(f"a request: {statistics.median(warm):.1f} ms loaded, {statistics.median(reloaded):.1f} ms with a load before it: "
              f"{statistics.median(reloaded) / statistics.median(warm):.1f} x")


# --- pressure

MARGIN = 64 * MIB  # memory that is not reserved: stacks of threads, buffers of connections, rounding of the allocator
FRACTION = 0.8  # pool.usable_fraction


class Group:
    """A control group with a memory limit for the daemon alone, below the group of this process: version 2 or else 1."""

    def __init__(self, limit):
        self.limit = limit
        self.path = None

    def __enter__(self):
        own = dict(line.strip().split(":", 2)[1:] for line in open("/proc/self/cgroup"))
        second = pathlib.Path("/sys/fs/cgroup" + own.get("", "/"))
        first = pathlib.Path("/sys/fs/cgroup/memory" + own.get("memory", "/"))
        for parent, name in ((second, "memory.max"), (first, "memory.limit_in_bytes")):
            path = parent / f"uma-bench-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            # The kernel fills a group's folder. Without the file for the limit, this hierarchy does not control memory.
            if (path / name).exists():
                (path / name).write_text(str(self.limit))
                self.path = path
                return self
            path.rmdir()
        raise SystemExit("pool: cannot make a control group for memory here: leave out --cgroup, then pool.memory_bytes_max is "
                         "the limit")

    def __exit__(self, *_):
        uma.until(lambda: not (self.path / "cgroup.procs").read_text(), "the group is empty")
        self.path.rmdir()

    def command(self, arguments):
        return ["/bin/sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *arguments]

    def kills(self):
        text = "".join((self.path / name).read_text() for name in ("memory.events", "memory.oom_control") if (self.path / name).exists())
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def taken_by_one(folder, names):
    """Returns the bytes that are reserved for one model, and the memory of a daemon after its model was unloaded."""
    with daemon_of(folder, names[0], "slots: 4\nkv: {cells: 4096, warm_bytes_max: 0}\n") as daemon, daemon.client(600) as client:
        ok(client.generate("hello", max_tokens=1))
        reserved = client.metrics()["memory_reserved_bytes"]
        uma.until(lambda: client.call(type="unload_model", model=names[0])["event"] == "ack", "it is unloaded")
        return reserved, daemon.anonymous_bytes()


def pressure(options):
    names = ["a", "b", "c"]
    with tempfile.TemporaryDirectory(prefix="uma-pool-", dir=options.folder) as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        copies(folder, options.model, names)
        one, idle = taken_by_one(folder, names)
        limit = int(2.4 * one)
        group = stack.enter_context(Group(int(limit / FRACTION))) if options.cgroup else None
        pool = f"min_loaded_s: {options.min_loaded}, maintenance_s: 2, usable_fraction: {FRACTION}"
        if group is None:
            pool += f", memory_bytes_max: {limit}"
        settings = f"slots: 4\nkv: {{cells: 4096, warm_bytes_max: {'4G' if options.fill_warm else '256M'}}}\npool: {{{pool}}}\n"
        print(f"one model takes {one / MIB:.0f} MiB, the limit is {limit / MIB:.0f} MiB"
              + (f", in a group of {group.limit / MIB:.0f} MiB" if group else "") + f"; a daemon without models takes {idle / MIB:.0f} MiB",
              flush=True)
        failures, deadlines, turns, lost = [], [0], {}, []
        peaks = dict.fromkeys(("anonymous", "resident", "reserved", "part", "beside", "warm", "cold"), 0)
        peaks["beside"] = -limit
        end = time.monotonic() + 60 * options.minutes
        daemon = daemon_of(folder, names[0], settings)
        if group:
            daemon.arguments = group.command(daemon.arguments)
        with daemon:
            def talk(number):
                rng = random.Random(number)
                with daemon.client(600) as client:
                    sessions = {}
                    while time.monotonic() < end:
                        model = rng.choice(names)
                        key = (model, rng.randrange(8 if options.fill_warm else 1))
                        if key not in sessions:
                            sessions[key] = client.create_session(model=model, mode="text", on_full="shift")
                            turns[sessions[key]] = 0
                        fields = {"session_id": sessions[key]} if rng.random() < 0.7 else {"model": model}
                        reply = client.generate(text_of(rng.randint(5, 300), rng), max_tokens=rng.randint(1, 24), **fields)
                        if reply.last["event"] == "eos":
                            if "session_id" in fields:
                                turns[sessions[key]] += 1
                        elif reply.code == "E_LIMIT_003":
                            deadlines[0] += 1
                        else:
                            failures.append(reply.last)
                        time.sleep(rng.random() * options.think)
                    for session in sessions.values():
                        told = client.session(session)
                        if told["turns"] != turns[session]:
                            lost.append((session, told["turns"], turns[session]))

            def note(**values):
                for key, value in values.items():
                    peaks[key] = max(peaks[key], value)

            threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(options.clients)]
            for thread in threads:
                thread.start()
            with daemon.client(600) as client:
                before = client.metrics()
                while any(thread.is_alive() for thread in threads):
                    anonymous, resident = daemon.own_anonymous_bytes(), daemon.rss_bytes()
                    numbers = client.metrics()
                    reserved = numbers["memory_reserved_bytes"]
                    # The memory is read between two reads of the reservations.
                    note(anonymous=anonymous, resident=resident, reserved=reserved, part=reserved / numbers["memory_usable_bytes"],
                         beside=anonymous - max(reserved, before["memory_reserved_bytes"]), warm=numbers["warm_bytes"],
                         cold=numbers["cold_bytes"])
                    before = numbers
                    time.sleep(0.1)
                numbers = client.metrics()
            print(f"{sum(turns.values())} turns in {len(turns)} sessions, {numbers['requests_total']} requests, {deadlines[0]} "
                  f"after their deadline, {len(failures)} failed, {len(lost)} sessions with lost turns")
            print(f"{numbers['model_loads_total'] / options.minutes:.1f} loads per minute; memory was short "
                  f"{numbers['memory_decisions_total']} times; snapshots: at most {peaks['warm'] / MIB:.0f} MiB in memory and "
                  f"{peaks['cold'] / MIB:.0f} MiB on disk, {numbers['states_dropped_total']} dropped")
            print(f"at most {peaks['reserved'] / MIB:.0f} MiB reserved, {100 * peaks['part']:.1f} % of the limit; at most "
                  f"RssAnon {peaks['anonymous'] / MIB:.0f} MiB, RSS {peaks['resident'] / MIB:.0f} MiB, RssAnon beyond the reservations "
                  f"{peaks['beside'] / MIB:.0f} MiB" + (f"; {group.kills()} processes killed for memory" if group else ""))
            for failure in failures[:3] + lost[:3]:
                print(failure)
            is_over = peaks["part"] > 1 or peaks["anonymous"] > limit + idle + MARGIN
            if failures or lost or is_over:
                return 2
    return 0


# --- together

def together(options):
    models = uma.BUILD / "models"
    image = base64.b64encode(pictures.GRADIENT).decode()
    with tempfile.TemporaryDirectory(prefix="uma-pool-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        copies(folder, options.model, ["chat"])
        for source, target in (("tiny-wordpiece", "embed"), ("tiny-wordpiece-rank", "rank"), ("tiny-register", "see")):
            shutil.copyfile(models / f"{source}.gguf", folder / f"{target}.gguf")
        (folder / "models.yaml").write_text(f"see: {{path: {folder}/see.gguf, projector: {models}/mmproj-tiny-register.gguf}}\n")
        rng = random.Random(1)
        settings = f"models: {folder}/models.yaml\nkv: {{cells: 8192}}\nslots: 4\n"
        with daemon_of(folder, "chat", settings) as daemon:
            def gaps_of_stream(count):
                with daemon.client(600) as client:
                    return ok(client.generate(text_of(50, rng), max_tokens=count, ignore_eos=True)).gaps_s()[5:]

            def one(client, kind):
                if kind == "embed":
                    return client.call(type="embed", texts=[text_of(12, rng) for _ in range(32)], model="embed")
                if kind == "rank":
                    return client.call(type="rerank", query=text_of(5, rng), documents=[text_of(20, rng) for _ in range(16)], model="rank")
                # Another size is another image, so that it is encoded.
                return client.finish(client.start(type="describe_image", data=image, query=text_of(3, rng), model="see", max_tokens=16)).last

            with daemon.client(600) as client:
                for kind in ("embed", "rank", "see"):
                    one(client, kind)
            quiet, busy, done = [], [], dict.fromkeys(("embed", "rank", "see"), 0)
            for _ in range(options.rounds):
                quiet.append(gaps_of_stream(options.tokens))
                stop = threading.Event()

                def work(kind):
                    with daemon.client(600) as own:
                        while not stop.is_set():
                            answer = one(own, kind)
                            if answer["event"] == "error":
                                raise AssertionError(answer)
                            done[kind] += 1

                threads = [threading.Thread(target=work, args=(kind,), daemon=True) for kind in done]
                for thread in threads:
                    thread.start()
                busy.append(gaps_of_stream(options.tokens))
                stop.set()
                for thread in threads:
                    thread.join()

        def ms(values, part):
            return 1000 * sorted(values)[min(len(values) - 1, int(len(values) * part))]
        quiet_p95 = statistics.median(ms(each, 0.95) for each in quiet)
        worst = statistics.median(max(each) * 1000 for each in busy)
        print(f"alone:  p50 {statistics.median(ms(each, 0.5) for each in quiet):.1f} ms, p95 {quiet_p95:.1f}, worst "
              f"{statistics.median(max(each) * 1000 for each in quiet):.1f}")
        print(f"beside: p50 {statistics.median(ms(each, 0.5) for each in busy):.1f} ms, p95 "
              f"{statistics.median(ms(each, 0.95) for each in busy):.1f}, worst {worst:.1f} (limit: {max(64, 4 * quiet_p95):.0f}); meanwhile "
              f"{done['embed'] * 32} texts were embedded, {done['rank'] * 16} documents scored, {done['see']} images described")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("registered", "pressure", "together"), help="the part to run")
    parser.add_argument("--model", required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--folder", help="folder for copies of the model (default: the system's folder for temporary files)")
    parser.add_argument("--rounds", type=int, default=5, help="registered, together: rounds (default 5)")
    parser.add_argument("--count", type=int, default=500, help="registered: known models (default 500)")
    parser.add_argument("--minutes", type=float, default=10, help="pressure: minutes of load (default 10)")
    parser.add_argument("--clients", type=int, default=6, help="pressure: clients (default 6)")
    parser.add_argument("--think", type=float, default=2, help="pressure: longest pause between requests of a client, s (default 2)")
    parser.add_argument("--min-loaded", type=float, default=5, help="pressure: the setting pool.min_loaded_s, s (default 5)")
    parser.add_argument("--fill-warm", action="store_true",
                        help="pressure: use more sessions, and let snapshots take all free memory")
    parser.add_argument("--cgroup", action="store_true",
                        help="pressure: limit the daemon by a control group (version 2 or 1; this user must be allowed to make "
                             "one) instead of by the setting")
    parser.add_argument("--tokens", type=int, default=400, help="together: new tokens of each stream (default 400)")
    options = parser.parse_args()
    return {"registered": registered, "pressure": pressure, "together": together}[options.part](options) or 0


if __name__ == "__main__":
    sys.exit(main())
