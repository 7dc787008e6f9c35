#!/usr/bin/env python3
"""Kills umad at random moments while agents talk to it, and starts it again: how much of what ended replies had computed the next prompts
read instead of computing it.

Each agent keeps its conversation itself and sends it whole with every turn. Agents ask in turn with random pauses, so that at a kill some
have ended long ago, some just now, and some are being answered; those ask once more. A conversation that has become long begins anew.
umad computes a part of what it has read again and compares (scheduler.verify). Exit codes: 0 measured, 1 KV was wrong, or umad did not
start.
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import uma  # noqa: E402

WITHIN_S = 5  # kv.write_within of umad
TURNS_MAX = 8  # of a conversation


class Agent:
    def __init__(self, number, seed, words):
        self.number, self.random, self.words = number, random.Random(seed * 100 + number), words
        self.ended_s = 0.0  # when its last reply ended
        self.begin()

    def begin(self):
        rules = " ".join(f"Rule {i}: {self.random.choice(('be brief', 'be kind', 'say why', 'name files'))}." for i in range(self.words // 4))
        self.messages = [{"role": "system", "content": f"You are agent {self.number} of {self.random.random()}. {rules}"}]
        self.known = 0

    def ask(self, port, tokens):
        """Asks the next question, or the last one again. Returns the prompt's tokens, and those that were reused."""
        if self.messages[-1]["role"] != "user":
            if len(self.messages) > 2 * TURNS_MAX:
                self.begin()
            self.messages.append({"role": "user", "content": f"Step {len(self.messages)}: what about {self.random.randint(0, 999)}?"})
        body = json.dumps({"messages": self.messages, "max_tokens": tokens, "temperature": 0})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        usage = answer["usage"]
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        self.known = usage["prompt_tokens"] + usage["completion_tokens"]
        self.ended_s = time.monotonic()
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def port_of(daemon):
    return int(daemon.log().rpartition("http://127.0.0.1:")[2].partition("/")[0])


def main(arguments):
    parser = argparse.ArgumentParser(prog="script/bench kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--words", type=int, default=160, help="of an agent's system prompt (default 160)")
    parser.add_argument("--tokens", type=int, default=12, help="of a reply (default 12)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    agents = [Agent(i, options.seed, options.words) for i in range(options.agents)]
    possible = read = recent_possible = recent_read = 0
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--slots", str(options.agents))
    with uma.Daemon(options.model, *flags, config="kv: {layout: unified}\n") as daemon:
        port = port_of(daemon)
        for agent in agents:
            agent.ask(port, options.tokens)
        for kill in range(options.kills):
            until = time.monotonic() + draw.uniform(WITHIN_S + 0.5, WITHIN_S + 4)
            stop = threading.Event()

            def talk(agent, port=port, until=until, stop=stop):
                try:
                    while not stop.is_set():
                        agent.ask(port, options.tokens)
                        stop.wait(agent.random.uniform(0, 2 * WITHIN_S))
                except (OSError, http.client.HTTPException, ValueError):
                    pass  # It was killed.

            threads = [threading.Thread(target=talk, args=(agent,)) for agent in agents]
            for thread in threads:
                thread.start()
            time.sleep(max(0.0, until - time.monotonic()))
            killed_s = time.monotonic()
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            stop.set()
            for thread in threads:
                thread.join()
            daemon.start()
            daemon.wait_ready()
            port = port_of(daemon)
            for agent in agents:
                is_due = killed_s - agent.ended_s >= WITHIN_S and agent.messages[-1]["role"] != "user"
                known, begins = agent.known, len(agent.messages) > 2 * TURNS_MAX
                prompt, reused = agent.ask(port, options.tokens)
                if known == 0 or begins:
                    continue
                if is_due:
                    possible, read = possible + min(known, prompt) - 1, read + min(reused, known)
                else:
                    recent_possible, recent_read = recent_possible + min(known, prompt) - 1, recent_read + min(reused, known)
            if (kill + 1) % 10 == 0:
                print(f"{kill + 1} kills: {read} of {possible} tokens of turns that had ended {WITHIN_S} s before, "
                      f"{recent_read} of {recent_possible} of later ones", flush=True)
    print(f"read after {options.kills} kills: {read / max(1, possible):.4f} of what had ended {WITHIN_S} s before, "
          f"{recent_read / max(1, recent_possible):.4f} of the rest")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
