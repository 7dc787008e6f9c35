#!/usr/bin/env python3
"""Replays real sessions of coding agents against umad and llama-server, in turn: how much of what could be reused was reused, when the
first token came, how long streams paused, and how long the whole job took.

Each agent replays one session of a trace (bench/agent_trace.py): stateless, the whole history with every request, a request after the
replies that it needs and a part of the recorded pause. All lengths are divided by the same number, which is printed. A reply has as
many tokens as recorded; what the agent sends back is the text of the trace, so that all contestants get the same prompts, and the
tokens of a reply cannot be reused. --restart ends the server when half of the requests are done and none is under way, --kill kills it
while some are: the agents wait until it has started again and ask once more. llama-server has its prompt cache in memory.
Exit codes: 0 measured, 1 usage, 2 a contestant failed, 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import agent_trace
import compare
import strategies
import svg_chart
from compare import ContestantFailed, say

TRACE = compare.ROOT / "bench/agent_sessions.jsonl"
CONTESTANTS = ("umad", "llama-server")
REPLY_S = 600  # the longest silence of a server
WARM_UP = [{"role": "user", "content": "hello"}]  # messages of a request that is not counted
MESSAGE_TOKENS = 8  # estimate of what a template adds to a message
FIGURES = ["requests", "reused_ratio", "computed_ratio", "first_token_p50_ms", "first_token_p95_ms", "first_token_max_ms", "worst_pause_ms",
           "wall_s", "waited_s", "server_cpu_s", "memory_peak_mib", "disk_mib"]
AFTER_FIGURES = ["after_wall_s", "after_reused_ratio", "after_first_token_p50_ms", "after_first_token_max_ms", "sent_again"]


@dataclasses.dataclass
class Ask:
    """A request as it is sent to every contestant."""
    request: agent_trace.Request
    body: str  # JSON
    tokens: tuple  # of its prompt, as the template writes it
    reply_tokens: int


@dataclasses.dataclass
class Job:
    """What so many agents do."""
    asks: list
    warm_up_tokens: tuple  # of the prompt before them, which also has the beginning of the template

    def describe(self):
        tokens = [len(ask.tokens) for ask in self.asks]
        possible = sum(agent_trace.possible_reuse([ask.tokens for ask in self.asks])) / sum(tokens)
        return (f"{len(self.asks)} requests with {sum(tokens):,} prompt tokens (the longest {max(tokens):,}), {possible:.1%} of them in an "
                f"earlier prompt, {sum(ask.reply_tokens for ask in self.asks):,} reply tokens")


@dataclasses.dataclass
class Outcome:
    """What became of a request. Times are seconds of time.monotonic()."""
    ask: Ask
    sent_s: float
    times_s: list  # of the pieces of its reply
    usage: dict
    receipt: dict  # umad's own account
    sent_again: int = 0

    @property
    def first_token_ms(self):
        return 1000 * (self.times_s[0] - self.sent_s)

    @property
    def worst_pause_ms(self):
        return 1000 * max(strategies.gaps(self.times_s), default=0.0)

    @property
    def reused_tokens(self):
        return self.usage["prompt_tokens_details"]["cached_tokens"]


def post(connection, path, document):
    connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise ContestantFailed(f"POST {path} failed with status {response.status}: {body[:500].decode(errors='replace')}")
    return json.loads(body)


class Tokenizer:
    """llama-server, which writes prompts with the model's template and splits them into tokens."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REPLY_S)

    def tokens_of_text(self, text, special=False):
        document = {"content": text, "add_special": special, "parse_special": special}
        return tuple(post(self.connection, "/tokenize", document)["tokens"])

    def tokens_of_messages(self, messages):
        return self.tokens_of_text(post(self.connection, "/apply-template", {"messages": messages})["prompt"], special=True)


def estimated_divisor(requests, context):
    """The smallest power of two by which lengths have to be divided so that every prompt fits with its reply."""
    divisor = 1
    while divisor < agent_trace.BLOCK_TOKENS and any(
            (request.prompt_tokens + request.generated_tokens) / divisor + MESSAGE_TOKENS * len(request.cuts) > context
            for request in requests):
        divisor *= 2
    return divisor


def make_asks(requests, tokenizer, divisor, options):
    """Returns the requests as they are sent. Raises ContestantFailed if one does not fit into the context."""
    sample = agent_trace.block_text("sample", 0, 1000)
    words = max(1, round(agent_trace.BLOCK_TOKENS / divisor * 1000 / len(tokenizer.tokens_of_text(sample))))
    asks = []
    for request in requests:
        messages = agent_trace.messages_of(request, words, options.common_blocks)
        reply_tokens = max(1, round(request.generated_tokens / divisor))
        tokens = tokenizer.tokens_of_messages(messages)
        if len(tokens) + reply_tokens > options.context:
            raise ContestantFailed(f"a prompt of {len(tokens)} tokens and its reply of {reply_tokens} do not fit into --context "
                                   f"{options.context}: set --divisor to more than {divisor}")
        body = {"model": options.model.stem, "messages": messages, "max_tokens": reply_tokens, "temperature": 0, "ignore_eos": True,
                "cache_prompt": True, "stream": True, "stream_options": {"include_usage": True}}
        asks.append(Ask(request, json.dumps(body), tokens, reply_tokens))
    return asks


def ask_server(connection, ask, on_first=lambda: None):
    """Sends a request and reads its reply; calls `on_first` at its first token. Raises OSError or http.client.HTTPException if the
    server is lost meanwhile, and ContestantFailed if the reply is an error or has another length."""
    sent_s = time.monotonic()
    connection.request("POST", "/v1/chat/completions", ask.body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise ContestantFailed(f"a request failed with status {response.status}: {response.read()[:500].decode(errors='replace')}")
    times_s, usage, receipt, ended = [], None, {}, False
    for line in response:
        if not line.endswith(b"\n"):
            break  # the server is lost
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            ended = True
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise ContestantFailed(f"a reply ended with an error: {chunk['error']}")
        choice = chunk["choices"][0] if chunk.get("choices") else {}
        # A token that has no text, such as a mark of the template, is not seen; the end of the reply always is.
        if choice.get("finish_reason") or any(choice.get("delta", {}).get(key) for key in ("content", "reasoning_content")):
            times_s.append(time.monotonic())
            if len(times_s) == 1:
                on_first()
        usage = chunk.get("usage") or usage
        receipt = chunk.get("uma", {}).get("usage", receipt)
    if not ended:
        raise http.client.IncompleteRead(b"")
    if usage is None or usage["completion_tokens"] != ask.reply_tokens:
        raise ContestantFailed(f"a reply has the usage {usage}, must have {ask.reply_tokens} tokens")
    return Outcome(ask, sent_s, times_s, usage, receipt)


class Replay:
    """Sends all requests to one server, each from a thread of its own as soon as it may, and notes what became of them."""

    def __init__(self, asks, port, options):
        self.asks = asks
        self.port = port
        self.options = options
        self.changed = threading.Condition()
        # Guarded by `changed`.
        self.outcomes = {}  # id of the request → Outcome
        self.under_way = 0
        self.streaming = 0  # those of them that have their first token
        self.held = False  # no request is sent: the server is about to end, or starts
        self.interrupted_s = None
        self.failure = None

    def run(self, interrupt=None):
        """Returns the outcomes in the order in which they were sent. `interrupt` is called in the middle of the job; when it returns,
        the server is ready again."""
        threads = [threading.Thread(target=self._run_one, args=(ask,), daemon=True) for ask in self.asks]
        for thread in threads:
            thread.start()
        if interrupt:
            self._interrupt(interrupt)
        with self.changed:
            self.changed.wait_for(lambda: self.failure or self._all_done())
            if self.failure:
                raise ContestantFailed(self.failure)
        for thread in threads:
            thread.join()
        return sorted(self.outcomes.values(), key=lambda outcome: outcome.sent_s)

    def _all_done(self):
        return len(self.outcomes) == len(self.asks)

    def _interrupt(self, interrupt):
        with self.changed:
            self.changed.wait_for(lambda: self.failure or len(self.outcomes) >= len(self.asks) // 2
                                  and (self.options.restart or self.streaming > 0 or self._all_done()))
            self.held = True
            if self.options.restart:
                self.changed.wait_for(lambda: self.failure or self.under_way == 0)
            if self.failure:
                return
            self.interrupted_s = time.monotonic()
        interrupt()
        with self.changed:
            self.held = False
            self.changed.notify_all()

    def _run_one(self, ask):
        request = ask.request
        try:
            with self.changed:
                self.changed.wait_for(lambda: self.failure or all(id(needed) in self.outcomes for needed in request.after))
            time.sleep(min(request.pause_s / self.options.speed, self.options.pause_max_s))
            outcome = self._send(ask)
            if outcome is None:  # The server was killed.
                outcome = self._send(ask, sent_again=1)
            with self.changed:
                self.outcomes[id(request)] = outcome
                self.changed.notify_all()
        except Exception as failure:  # The thread that waits for all has to hear of it.
            with self.changed:
                self.failure = self.failure or f"session {request.session}, agent {request.agent}, t {request.t}: {failure!r}"
                self.changed.notify_all()

    def _send(self, ask, sent_again=0):
        """Returns what became of the request; None if the server was killed meanwhile."""
        began = []

        def note_first():
            with self.changed:
                began.append(True)
                self.streaming += 1
                self.changed.notify_all()

        with self.changed:
            self.changed.wait_for(lambda: self.failure or not self.held)
            if self.failure:
                raise ContestantFailed(self.failure)
            self.under_way += 1
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)
        try:
            return dataclasses.replace(ask_server(connection, ask, note_first), sent_again=sent_again)
        except (OSError, http.client.HTTPException):
            if self.options.kill and self.interrupted_s is not None and not sent_again:
                return None
            raise
        finally:
            connection.close()
            with self.changed:
                self.under_way -= 1
                self.streaming -= len(began)
                self.changed.notify_all()


class Server:
    """A contestant that can be ended and started again with what it has stored."""

    def __init__(self, name, options, folder, stack):
        self.name = name
        self.folder = folder
        self.stack = stack  # of context managers; it ends the processes
        self.port = compare.free_port()
        self.ready_path = "/health" if name == "llama-server" else "/ready"
        self.cpu_s = 0.0  # of its processes, from begin() on
        self.memory_mib = 0.0  # the largest peak of them
        cells = options.slots * options.context
        if name == "llama-server":
            self.log_path = folder / "llama-server.log"
            command = [options.llama_server, "--model", options.model, "--host", "127.0.0.1", "--port", self.port, "-c", cells, "-np",
                       options.slots, "--kv-unified", "--cache-reuse", 256, *compare.shared_flags(options.threads)]
            self.process = stack.enter_context(compare.running(command, self.log_path))
        else:
            program = options.before if name == "before" else options.umad
            flags = [compare.cells_flag(program), cells, "--slots", options.slots, "--threads", options.threads, "--http",
                     f"127.0.0.1:{self.port}"]
            config = f"kv: {{layout: unified}}\n{options.config}\n"
            self.process, _, self.log_path = stack.enter_context(
                compare.running_umad(program, options.model, folder, config, *flags))
        self._wait_until_ready()

    def _wait_until_ready(self):
        compare.wait_until_ready(self.process, self.log_path, lambda: compare.answers_ok(self.port, self.ready_path))

    def begin(self):
        """What it has computed so far, to load the model and to measure, does not count."""
        self.cpu_s = -compare.cpu_s(self.process.pid)

    def account(self):
        """Adds what the process has used. Call it once, before it ends."""
        self.cpu_s += compare.cpu_s(self.process.pid)
        self.memory_mib = max(self.memory_mib, compare.memory_mib(self.process.pid, "VmHWM"))

    def restart(self, kill):
        self.account()
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(compare.READY_S)
        self.process = self.stack.enter_context(compare.running(self.process.args, self.log_path))
        self._wait_until_ready()

    def disk_mib(self):
        """What it has stored on disk; None for llama-server, which stores nothing."""
        if self.name == "llama-server":
            return None
        return sum(path.stat().st_size for path in self.folder.glob("*/kv/**/*") if path.is_file()) / (1 << 20)


def measure(name, job, options, folder):
    """Runs the whole job on a fresh server. Returns its figures, and a row for each request."""
    others = compare.OthersWatch()
    with contextlib.ExitStack() as stack:
        server = Server(name, options, folder, stack)
        try:
            # A request that is not counted; then umad, when fresh, measures what calls of every width cost.
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=REPLY_S)
            post(connection, "/v1/chat/completions", {"model": options.model.stem, "max_tokens": 2, "messages": WARM_UP})
            connection.close()
            time.sleep(compare.WARM_PAUSE_S)
            replay = Replay(job.asks, server.port, options)
            server.begin()
            began_s = time.monotonic()
            interrupt = (lambda: server.restart(options.kill)) if options.restart or options.kill else None
            outcomes = replay.run(interrupt)
            ended_s = max(outcome.times_s[-1] for outcome in outcomes)
            server.account()
            disk_mib = server.disk_mib()
        except (ContestantFailed, OSError, http.client.HTTPException) as failure:
            raise ContestantFailed(f"{name}: {failure}\nthe end of its log:\n{compare.tail(server.log_path)}") from None
        finally:
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                shutil.copy(server.log_path, options.logs / f"{name}.log")
    rows = rows_of(outcomes, job.warm_up_tokens, began_s)
    figures = figures_of(rows)
    figures |= {"wall_s": ended_s - began_s, "server_cpu_s": server.cpu_s, "memory_peak_mib": server.memory_mib, "disk_mib": disk_mib,
                "others_busy_ratio": others.ratio()}
    if replay.interrupted_s is not None:
        interrupted_s = replay.interrupted_s - began_s
        after = figures_of([row for row in rows if row["sent_s"] >= interrupted_s])
        figures |= {f"after_{figure}": value for figure, value in after.items()}
        figures |= {"interrupted_s": interrupted_s, "after_wall_s": ended_s - replay.interrupted_s,
                    "sent_again": sum(row["sent_again"] for row in rows)}
    return figures, rows


def rows_of(outcomes, warm_up_tokens, began_s):
    """Returns a row for each request, in the order in which they were sent."""
    possible = agent_trace.possible_reuse([warm_up_tokens, *(outcome.ask.tokens for outcome in outcomes)])[1:]
    rows = []
    for outcome, possible_tokens in zip(outcomes, possible):
        request = outcome.ask.request
        prompt_tokens = outcome.usage["prompt_tokens"]
        rows.append({
            "session": request.session, "agent": request.agent, "t": request.t, "sent_s": outcome.sent_s - began_s,
            "prompt_tokens": prompt_tokens, "possible_tokens": possible_tokens, "reused_tokens": outcome.reused_tokens,
            "unexpected_tokens": prompt_tokens - len(outcome.ask.tokens),
            "reply_tokens": outcome.ask.reply_tokens, "first_token_ms": outcome.first_token_ms, "worst_pause_ms": outcome.worst_pause_ms,
            "took_s": outcome.times_s[-1] - outcome.sent_s, "sent_again": outcome.sent_again,
            **{key: outcome.receipt.get(key) for key in ("tier", "reuse_reason", "queue_ms", "restore_ms", "ttft_ms") if outcome.receipt}})
    return rows


def figures_of(rows):
    """The figures of these requests. `computed_ratio`: tokens computed ÷ those that had to be."""
    if not rows:
        return {}
    total = {key: sum(row[key] for row in rows) for key in ("prompt_tokens", "possible_tokens", "reused_tokens")}
    first_ms = [row["first_token_ms"] for row in rows]
    return {"requests": len(rows), "prompt_tokens": total["prompt_tokens"], "possible_tokens": total["possible_tokens"],
            "reused_tokens": total["reused_tokens"], "reply_tokens": sum(row["reply_tokens"] for row in rows),
            "reused_ratio": total["reused_tokens"] / total["possible_tokens"] if total["possible_tokens"] else None,
            "computed_ratio": (total["prompt_tokens"] - total["reused_tokens"]) / (total["prompt_tokens"] - total["possible_tokens"]),
            "first_token_p50_ms": compare.median(first_ms), "first_token_p95_ms": strategies.percentile(first_ms, 0.95),
            "first_token_max_ms": max(first_ms), "worst_pause_ms": max(row["worst_pause_ms"] for row in rows),
            "waited_s": sum(row["took_s"] for row in rows)}


def format_by_figure(pairs_by_agents, figures, contestants):
    """Returns a Markdown table with a row for each figure: by the number of agents, the medians, and umad's ratios to the others."""
    others = compare.compared_with_umad(contestants)
    shown = ", ".join(contestants) + "".join(f" (÷ {name})" for name in others)
    titles = [f"figure: {shown}", *(f"{agents} agent{'s' * (agents != 1)}" for agents in pairs_by_agents)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for figure in figures:
        cells = [figure]
        for pairs in pairs_by_agents.values():
            medians = (compare.median([measured[name].get(figure) for measured in pairs]) for name in contestants)
            ratios = [ratio for name in others if (ratio := compare.median_ratio(pairs, figure, "umad", name)) is not None]
            cells.append(", ".join(map(compare.format_number, medians)) + "".join(f" ({compare.format_number(ratio)})" for ratio in ratios))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows_by_contestant, figures_by_contestant, agents, event):
    """Draws one pair. `event`: what happened in the middle, such as "killed"; each contestant's time is counted from it. None: nothing,
    and times are counted from the beginning."""
    series = {name: [(row["sent_s"] - (figures_by_contestant[name]["interrupted_s"] if event else 0), row["first_token_ms"]) for row in rows]
              for name, rows in rows_by_contestant.items()}
    return svg_chart.log_points(f"First token of each request of {agents} coding agents",
                                f"time since the server was {event} (s)" if event else "time since the job began (s)",
                                "time to the first token (ms)", series, mark=(0, event) if event else None)


def describe(options, divisor, jobs):
    """What was measured, for the text above a table."""
    event = " Killed in the middle." if options.kill else " Restarted in the middle." if options.restart else ""
    return (f"{options.model.name}, {options.trace.name}; lengths ÷ {divisor}, pauses ÷ {options.speed:g} and at most "
            f"{options.pause_max_s:g} s; {options.slots} slots, -c {options.slots} × {options.context}, one pool of cells, {options.threads} "
            f"compute thread{'s' if options.threads > 1 else ''}; {options.pairs} pair{'s' if options.pairs > 1 else ''}.{event}\n"
            + ("" if options.kill else f"Agents: {'; '.join(f'{agents}: {job.describe()}' for agents, job in jobs.items())}."))


def run_pairs(agents, job, options, folder):
    """Returns the figures of each pair, and the rows of the first one."""
    pairs, rows = [], {}
    for number in range(options.pairs):
        measured = {}
        for name in options.contestants if number % 2 == 0 else options.contestants[::-1]:
            say(f"{agents} agents, pair {number + 1} of {options.pairs}: {name}")
            measured[name], new_rows = measure(name, job, options, folder)
            rows.setdefault(name, new_rows)
        pairs.append(measured)
    return pairs, {name: rows[name] for name in options.contestants}


def agents_list(text):
    return [compare.positive(part) for part in text.split(",")]


def parse_arguments(arguments):
    positive = compare.positive
    parser = argparse.ArgumentParser(prog="script/bench agents", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--agents", type=agents_list, default=[1, 4, 8], help="numbers of agents, a session each (default 1,4,8)")
    parser.add_argument("--requests", type=positive, default=16, help="most requests of a session (default 16)")
    parser.add_argument("--pairs", type=positive, default=3, help="pairs (default 3)")
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE, help=f"sessions, JSON lines (default {TRACE.relative_to(compare.ROOT)})")
    parser.add_argument("--divisor", type=positive,
                        help="divide all lengths by this (default: the smallest power of two with which every prompt fits the context)")
    parser.add_argument("--common-blocks", type=int, default=0, help="blocks of 64 tokens, undivided, that all sessions begin with: the "
                        "same program's system prompt and tools (default 0, as in the trace)")
    parser.add_argument("--speed", type=float, default=5, help="divide the pauses between requests by this (default 5)")
    parser.add_argument("--pause-max-s", type=float, default=5, help="longest pause in s after that (default 5)")
    parser.add_argument("--slots", type=positive, default=4, help="slots of each server (default 4, as llama-server has)")
    parser.add_argument("--context", type=positive, default=8192, help="KV cells per slot, and limit of a prompt with its reply "
                        "(default 8,192)")
    parser.add_argument("--threads", type=positive, default=2, help="compute threads of each server (default 2)")
    parser.add_argument("--config", default="", help="YAML settings for umad")
    parser.add_argument("--contestants", help=f"some of {','.join(CONTESTANTS)} (default: both)")
    parser.add_argument("--before", help="umad of another build: compare with it instead of llama-server")
    middle = parser.add_mutually_exclusive_group()
    middle.add_argument("--restart", action="store_true", help="end each server in the middle of the job and start it again")
    middle.add_argument("--kill", action="store_true", help="kill each server in the middle of the job and start it again")
    parser.add_argument("--json", type=pathlib.Path, help="write every pair's figures, and the requests of the first pair, to this file")
    parser.add_argument("--chart", type=pathlib.Path, help="draw the first tokens of the first pair and the most agents to this file, as SVG")
    parser.add_argument("--logs", type=pathlib.Path, help="copy the servers' last logs to this folder")
    parser.add_argument("--write-docs", action="store_true", help="also write a table in docs/BENCHMARKS.md, and its picture")
    parser.add_argument("--umad", default=compare.BIN / "umad", help="program (default: that of build/release)")
    parser.add_argument("--llama-server", default="llama-server", help="program (default llama-server)")
    options = parser.parse_args(arguments)
    possible = ("umad", "before") if options.before else CONTESTANTS
    options.contestants = options.contestants.split(",") if options.contestants else list(possible)
    if not set(options.contestants) <= set(possible):
        parser.error(f"--contestants is {','.join(options.contestants)}, must be some of {', '.join(possible)}")
    if options.write_docs and options.restart:
        parser.error("--write-docs has a place for jobs that go on and for those that are killed, not for --restart")
    if options.speed <= 0 or options.pause_max_s < 0 or options.common_blocks < 0:
        parser.error(f"--speed is {options.speed:g}, must be above 0; --pause-max-s is {options.pause_max_s:g} and --common-blocks "
                     f"{options.common_blocks}, must be 0 or more")
    for path, flag in ((options.model, "--model"), (options.trace, "--trace")):
        if not path.is_file():
            parser.error(f"{flag}: there is no file {path}")
    programs = {"umad": options.umad, "before": options.before, "llama-server": options.llama_server}
    for program in {options.llama_server, *(programs[name] for name in options.contestants)}:  # llama-server also counts tokens
        if shutil.which(program) is None:
            parser.error(f"there is no program {program}: build or install it")
    return options


def prepare(options, folder):
    """Returns the divisor, and the job for each number of agents."""
    try:
        sessions = agent_trace.read_trace(options.trace)
        chosen = {agents: agent_trace.choose(sessions, agents, options.requests) for agents in options.agents}
    except agent_trace.TraceError as failure:
        raise ContestantFailed(str(failure)) from None
    most = chosen[max(options.agents)]
    divisor = options.divisor or estimated_divisor(most, options.context)
    port, log_path = compare.free_port(), folder / "tokenizer.log"
    command = [options.llama_server, "--model", options.model, "--host", "127.0.0.1", "--port", port, "-c", 512, "-np", 1, "--no-warmup"]
    with compare.running(command, log_path) as process:
        compare.wait_until_ready(process, log_path, lambda: compare.answers_ok(port))
        tokenizer = Tokenizer(port)
        asks = {id(ask.request): ask for ask in make_asks(most, tokenizer, divisor, options)}
        warm_up_tokens = tokenizer.tokens_of_messages(WARM_UP)
    return divisor, {agents: Job([asks[id(request)] for request in requests], warm_up_tokens) for agents, requests in chosen.items()}


def run(arguments):
    options = parse_arguments(arguments)
    compare.warn_if_busy()
    pairs_by_agents, rows_by_agents = {}, {}
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as name:
        folder = pathlib.Path(name)
        divisor, jobs = prepare(options, folder)
        description = describe(options, divisor, jobs)
        say(description)
        for agents, job in jobs.items():
            pairs_by_agents[agents], rows_by_agents[agents] = run_pairs(agents, job, options, folder)
            if options.json:
                document = {"description": description, "model": options.model.name, "divisor": divisor, "pairs": pairs_by_agents,
                            "requests": rows_by_agents}
                compare.write_whole(options.json, json.dumps(document, indent=1) + "\n")
    figures = FIGURES + (AFTER_FIGURES if options.restart or options.kill else [])
    table = format_by_figure(pairs_by_agents, figures, options.contestants)
    others = max(figures["others_busy_ratio"] for pairs in pairs_by_agents.values() for pair in pairs for figures in pair.values())
    description += f"\n{strategies.describe_others(others)}"
    most = max(options.agents)
    event = "killed" if options.kill else "restarted" if options.restart else None
    name = f"agents_{event}" if event else "agents"
    for path in [options.chart, strategies.DOCS / f"img/{name}.svg" if options.write_docs else None]:
        if path:
            compare.write_whole(path, draw(rows_by_agents[most], pairs_by_agents[most][0], most, event))
    if options.write_docs:
        page = strategies.DOCS / "BENCHMARKS.md"
        command = compare.shown_command("agents", arguments)
        block = (f"`{command}`: {description}\n\n{table}\n\n![Points over time on a logarithmic scale: the first token of each request, of "
                 f"umad and of llama-server](img/{name}.svg)")
        compare.write_whole(page, strategies.replace_block(page.read_text(), name, block))
    print(f"{description}\n\n{table}")


if __name__ == "__main__":
    sys.exit(compare.exit_code_of(lambda: run(sys.argv[1:])))
