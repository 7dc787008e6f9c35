#!/usr/bin/env python3
"""Many models behind one daemon, in three parts.

registered  hundreds of models known and three used: memory and start beside a daemon that knows only these three; a model's
            first request, its next ones, and the same with a reload before each.
pressure    memory for two of three models under a mixed load: failures, loads a minute, memory, turns of sessions.
together    a chat's stream alone, then beside embeddings, reranking and images in the same daemon: time between its tokens.
Exit codes: 0 measured, 1 usage, 2 a promise was broken (a failure that is no deadline, memory beyond the limit, a lost turn).
"""

import argparse
import base64
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

import uma  # noqa: E402

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
    """Starts a daemon, uses the models; returns figures and the daemon's memory."""
    daemon = daemon_of(folder, names[0], "n_ctx: 2048\nslots: 2\n")
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
        with daemon_of(folder, names[0], "n_ctx: 2048\nslots: 2\n") as daemon, daemon.client(600) as client:
            def request(model):
                began = time.monotonic()
                reply = ok(client.generate("a request", model=model, max_tokens=1, progress=True))
                return (time.monotonic() - began) * 1000, reply
            took, reply = request(names[1])
            print(f"a cold model's first request: {took:.0f} ms, "
                  f"{sum(event.get('stage') == 'loading' for event in reply.events)} reports of progress before its token")
            warm = [request(names[1])[0] for _ in range(10)]
            for _ in range(10):
                reloaded.append(request(names[2])[0])
                uma.until(lambda: client.call(type="unload_model", model=names[2])["event"] == "ack", "it is unloaded")
        print(f"a request: {statistics.median(warm):.1f} ms loaded, {statistics.median(reloaded):.1f} ms with a load before each: "
              f"{statistics.median(reloaded) / statistics.median(warm):.1f} x")


# --- pressure

def reserved_by(folder, names):
    """What the governor reserves for one model."""
    with daemon_of(folder, names[0], "n_ctx: 4096\nslots: 4\nkv: {warm_bytes_max: 256M}\n") as daemon, daemon.client(600) as client:
        ok(client.generate("hello", max_tokens=1))
        return client.metrics()["memory_reserved_bytes"]


def pressure(options):
    names = ["a", "b", "c"]
    with tempfile.TemporaryDirectory(prefix="uma-pool-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        copies(folder, options.model, names)
        one = reserved_by(folder, names)
        limit = int(2.4 * one)
        warm = "256M" if not options.fill_warm else "4G"
        settings = (f"n_ctx: 4096\nslots: 4\nkv: {{warm_bytes_max: {warm}}}\n"
                    f"pool: {{memory_bytes_max: {limit}, min_loaded_s: {options.min_loaded}, maintenance_s: 2}}\n")
        print(f"one model takes {one / MIB:.0f} MiB, {limit / MIB:.0f} MiB may be used", flush=True)
        failures, deadlines, turns, lost = [], [0], {}, []
        peaks = {"anonymous": 0, "reserved": 0}
        end = time.monotonic() + 60 * options.minutes
        with daemon_of(folder, names[0], settings) as daemon:
            def talk(number):
                rng = random.Random(number)
                with daemon.client(600) as client:
                    sessions = {}
                    while time.monotonic() < end:
                        model = rng.choice(names)
                        if model not in sessions:
                            sessions[model] = client.create_session(model=model, mode="text", on_full="shift")
                            turns[sessions[model]] = 0
                        fields = {"session_id": sessions[model]} if rng.random() < 0.7 else {"model": model}
                        reply = client.generate(text_of(rng.randint(5, 300), rng), max_tokens=rng.randint(1, 24), **fields)
                        if reply.last["event"] == "eos":
                            if "session_id" in fields:
                                turns[sessions[model]] += 1
                        elif reply.code == "E_LIMIT_003":
                            deadlines[0] += 1
                        else:
                            failures.append(reply.last)
                        time.sleep(rng.random() * options.think)
                    for session in sessions.values():
                        told = client.session(session)
                        if told["turns"] != turns[session]:
                            lost.append((session, told["turns"], turns[session]))

            threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(options.clients)]
            for thread in threads:
                thread.start()
            with daemon.client(600) as client:
                while any(thread.is_alive() for thread in threads):
                    numbers = client.metrics()
                    peaks["anonymous"] = max(peaks["anonymous"], daemon.anonymous_bytes())
                    peaks["reserved"] = max(peaks["reserved"], numbers["memory_reserved_bytes"])
                    time.sleep(0.5)
                numbers = client.metrics()
            print(f"{sum(turns.values())} turns in {len(turns)} sessions, {numbers['requests_total']} requests, {deadlines[0]} past their "
                  f"deadline, {len(failures)} failures, {len(lost)} sessions with lost turns")
            print(f"{numbers['model_loads_total'] / options.minutes:.1f} loads a minute, {numbers['memory_decisions_total']} times short of memory; at "
                  f"most {peaks['reserved'] / MIB:.0f} MiB reserved, {peaks['anonymous'] / MIB:.0f} MiB in memory that is no file")
            for failure in failures[:3] + lost[:3]:
                print(failure)
            if failures or lost or peaks["reserved"] > limit:
                return 2
    return 0


# --- together

def together(options):
    models = options.shared
    image = base64.b64encode((models / "grad32.png").read_bytes()).decode()
    with tempfile.TemporaryDirectory(prefix="uma-pool-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        copies(folder, options.model, ["chat"])
        for source, target in (("bert-bge-vocab-random-mean", "embed"), ("bert-bge-vocab-random-rank", "rank"),
                               ("babyllama105-ext-f32", "see")):
            shutil.copyfile(models / f"{source}.gguf", folder / f"{target}.gguf")
        (folder / "models.yaml").write_text(f"see: {{path: {folder}/see.gguf, projector: {models}/mmproj-tinygemma3.gguf}}\n")
        rng = random.Random(1)
        settings = f"models: {folder}/models.yaml\nn_ctx: 8192\nslots: 4\n"
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
              f"{statistics.median(ms(each, 0.95) for each in busy):.1f}, worst {worst:.1f} (contract: {max(64, 4 * quiet_p95):.0f}); meanwhile "
              f"{done['embed'] * 32} texts embedded, {done['rank'] * 16} scored, {done['see']} images described")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("registered", "pressure", "together"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", help="for copies of the model (the system's for temporary files)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=500, help="registered: models")
    parser.add_argument("--minutes", type=float, default=10, help="pressure: how long")
    parser.add_argument("--clients", type=int, default=6, help="pressure: how many")
    parser.add_argument("--think", type=float, default=2, help="pressure: seconds between two requests of a client, at most")
    parser.add_argument("--min-loaded", type=float, default=5, help="pressure: pool.min_loaded_s")
    parser.add_argument("--fill-warm", action="store_true", help="pressure: states may take all memory there is")
    parser.add_argument("--tokens", type=int, default=400, help="together: of each stream")
    parser.add_argument("--shared", type=pathlib.Path, default=ROOT.parent / "shared" / "models", help="together: the other models")
    options = parser.parse_args()
    return {"registered": registered, "pressure": pressure, "together": together}[options.part](options) or 0


if __name__ == "__main__":
    sys.exit(main())
