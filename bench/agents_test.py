#!/usr/bin/env python3
"""Unit tests of agent_trace.py and agents.py: the order of an agent's requests, their messages, what of a prompt could be reused, and
what a replay does when its server is lost."""

import argparse
import contextlib
import http.server
import json
import pathlib
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import agent_trace
import agents
import compare


def request(t, blocks, agent=0, generated=64, api_s=1.0, session="s"):
    return agent_trace.Request(session, agent, t, api_s, 64 * len(blocks), generated, tuple(blocks))


def chosen(*requests):
    return agent_trace.choose({"s": list(requests)}, 1, len(requests))


class Trace(unittest.TestCase):
    ROW = {"session": "a", "agent": 0, "t": 1.5, "prompt": 200, "generated": 7, "api_s": None, "blocks": [[1, 2], [9, 9]]}

    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.jsonl"
            path.write_text(text)
            return agent_trace.read_trace(path)

    def test_runs_have_their_last_block(self):
        self.assertEqual(self.read(json.dumps(self.ROW))["a"][0].blocks, (1, 2, 9))

    def test_a_session_is_in_order_of_time(self):
        rows = [self.ROW | {"t": t} for t in (5, 2)]
        self.assertEqual([found.t for found in self.read("\n".join(map(json.dumps, rows)))["a"]], [2, 5])

    def test_what_is_wrong_is_named_with_its_line(self):
        for wrong in ("{", "[]", json.dumps(self.ROW | {"t": "soon"}), json.dumps(self.ROW | {"blocks": []}),
                      json.dumps(self.ROW | {"blocks": [[3, 1]]}), json.dumps(self.ROW | {"blocks": [[0, 1 << 60]]})):
            with self.assertRaisesRegex(agent_trace.TraceError, "line 2 of .*trace.jsonl"):
                self.read(json.dumps(self.ROW) + "\n" + wrong)
        with self.assertRaisesRegex(agent_trace.TraceError, "no requests"):
            self.read("")

    def test_a_missing_file_is_named(self):
        with self.assertRaisesRegex(agent_trace.TraceError, "/no/such/trace"):
            agent_trace.read_trace(pathlib.Path("/no/such/trace"))

    def test_more_agents_than_sessions_are_refused(self):
        with self.assertRaisesRegex(agent_trace.TraceError, "1 sessions, too few for 2 agents"):
            agent_trace.choose({"s": [request(0, [1])]}, 2, 1)

    def test_the_shipped_sessions_are_mostly_reusable(self):
        sessions = agent_trace.read_trace(agents.TRACE)
        self.assertEqual(len(sessions), 8)
        prompts = [found.blocks for found in sessions["trace_0527"]]
        self.assertAlmostEqual(sum(agent_trace.possible_reuse(prompts)) / sum(map(len, prompts)), 0.97, delta=0.01)


class Order(unittest.TestCase):
    def test_an_agent_asks_after_its_last_reply_and_the_rest_of_the_time(self):
        first, second = chosen(request(0, [1]), request(3, [1, 2]))
        self.assertEqual((second.after, second.pause_s), ([first], 2.0))

    def test_a_reply_of_unknown_time_leaves_no_pause(self):
        _, second = chosen(request(0, [1], api_s=None), request(3, [1, 2]))
        self.assertEqual(second.pause_s, 0)

    def test_sub_agents_run_beside_each_other(self):
        main, one, other, one_again, _ = chosen(request(0, [1]), request(2, [5], agent=1), request(2.5, [6], agent=2),
                                                request(6, [5, 7], agent=1), request(7, [6, 8], agent=2))
        self.assertEqual([one.after, other.after, one_again.after], [[main], [main], [main, one]])
        self.assertEqual(one_again.pause_s, 3.0)

    def test_the_main_agent_waits_for_sub_agents_that_had_ended(self):
        main, ended, running, later = chosen(request(0, [1]), request(2, [5], agent=1), request(9.5, [6], agent=2), request(10, [1, 2]))
        self.assertEqual((later.after, later.pause_s), ([main, ended], 7.0))
        self.assertNotIn(running, later.after)

    def test_an_agent_that_the_limit_cuts_off_is_not_waited_for(self):
        session = [request(0, [1]), request(2, [5], agent=1), request(10, [1, 2]), request(12, [5, 6], agent=1)]
        self.assertEqual(agent_trace.choose({"s": session}, 1, 3)[2].after, [session[0]])


class Messages(unittest.TestCase):
    def test_a_prompt_that_goes_on_keeps_its_messages_and_adds_reply_and_text(self):
        first, second = chosen(request(0, range(32), generated=130), request(5, range(40)))
        self.assertEqual(first.cuts, [0, 30])
        self.assertEqual(second.cuts, [0, 30, 32, 34])
        before, after = (agent_trace.messages_of(found, 3) for found in (first, second))
        self.assertEqual(after[:2], before)
        self.assertEqual([message["role"] for message in after], ["system", "user", "assistant", "user"])

    def test_where_only_one_block_is_new_the_reply_is_a_word(self):
        _, second = chosen(request(0, range(32)), request(5, range(33)))
        self.assertEqual([message["content"] for message in agent_trace.messages_of(second, 1)][2], agent_trace.NO_TEXT)

    def test_the_same_prompt_again_has_the_same_messages(self):
        first, second = chosen(request(0, range(32)), request(5, range(32)))
        self.assertEqual(agent_trace.messages_of(first, 2), agent_trace.messages_of(second, 2))

    def test_an_edited_prompt_is_equal_up_to_the_edit(self):
        first, second, edited = chosen(request(0, range(32), generated=256), request(5, range(40)), request(9, [*range(33), *range(90, 99)]))
        before, after = (agent_trace.messages_of(found, 2) for found in (second, edited))
        self.assertEqual(after[:2], before[:2])
        self.assertEqual(after[2]["role"], "assistant")
        self.assertEqual(after[2]["content"].split()[:2], before[2]["content"].split()[:2])
        self.assertNotEqual(after[2]["content"].split()[2:4], before[2]["content"].split()[2:4])
        self.assertEqual(after[-1]["role"], "user")

    def test_every_prompt_of_the_shipped_sessions_ends_with_a_user(self):
        for found in agent_trace.choose(agent_trace.read_trace(agents.TRACE), 8, 1000):
            messages = agent_trace.messages_of(found, 1)
            self.assertEqual([message["role"] for message in messages], ["system", *["user", "assistant"] * len(messages)][:len(messages)])
            self.assertEqual(messages[-1]["role"], "user")
            self.assertEqual(found.cuts, sorted(found.cuts))

    def test_text_is_a_function_of_session_and_block(self):
        self.assertEqual(agent_trace.block_text("s", 7, 4), agent_trace.block_text("s", 7, 4))
        self.assertEqual(len(agent_trace.block_text("s", 7, 4).split()), 4)
        self.assertNotEqual(agent_trace.block_text("s", 7, 4), agent_trace.block_text("s", 8, 4))
        self.assertNotEqual(agent_trace.block_text("s", 7, 4), agent_trace.block_text("t", 7, 4))

    def test_common_blocks_are_the_same_in_all_sessions(self):
        requests = agent_trace.choose({name: [request(0, range(1, 33), session=name)] for name in "st"}, 2, 1)
        one, other = ([word for message in agent_trace.messages_of(found, 2, common_blocks=4) for word in message["content"].split()]
                      for found in requests)
        self.assertEqual(agent_trace.common(one, other) // 2, 4)


class Reuse(unittest.TestCase):
    def test_common_is_the_length_of_the_longest_common_prefix(self):
        for one, other, length in (((), (), 0), ((1,), (2,), 0), ((1, 2, 3), (1, 2, 3), 3), ((1, 2, 3), (1, 2), 2), ((1, 2, 3, 4), (1, 2, 9, 4), 2)):
            self.assertEqual(agent_trace.common(one, other), length)

    def test_the_longest_beginning_in_any_earlier_prompt_counts_but_not_the_last_token(self):
        prompts = [(1, 2, 3, 4), (1, 2, 9), (1, 2, 3, 4, 5), (1, 2, 9), (7,)]
        self.assertEqual(agent_trace.possible_reuse(prompts), [0, 2, 4, 2, 0])


class Divisor(unittest.TestCase):
    def test_is_the_smallest_power_of_two_with_which_all_fit(self):
        found = chosen(request(0, range(100), generated=1600))  # 8,000 tokens and two messages
        self.assertEqual(agents.estimated_divisor(found, 8192), 1)
        self.assertEqual(agents.estimated_divisor(found, 8000), 2)
        self.assertEqual(agents.estimated_divisor(found, 1100), 8)
        self.assertEqual(agents.estimated_divisor(found, 10), agent_trace.BLOCK_TOKENS)


def make_ask(found, tokens=2):
    return agents.Ask(found, json.dumps({"t": found.t}), tuple(found.blocks), tokens)


class FakeServer(http.server.BaseHTTPRequestHandler):
    """Answers with two tokens; before that it calls what the test has set."""
    before_answer = staticmethod(lambda t: None)
    asked = []

    def do_POST(self):
        t = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["t"]
        type(self).asked.append(t)
        self.send_response(200)
        self.end_headers()
        self._say({"choices": [{"delta": {"content": "a"}}]})
        if type(self).before_answer(t) == "lost":
            return
        self._say({"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}],
                   "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, chunk):
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def fake_server(before_answer=lambda t: None):
    handler = type("Handler", (FakeServer,), {"before_answer": staticmethod(before_answer), "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], handler.asked
        finally:
            server.shutdown()
            thread.join()


class Tables(unittest.TestCase):
    def test_a_row_has_a_figure_for_each_number_of_agents(self):
        pairs = {1: [{"umad": {"t": 2, "disk": 7}, "other": {"t": 4}}], 4: [{"umad": {"t": 3}, "other": {"t": 1}}]}
        self.assertEqual(agents.format_by_figure(pairs, ["t", "disk"], ["umad", "other"]).splitlines(), [
            "| figure: umad, other (÷ other) | 1 agent | 4 agents |", "|---|---|---|", "| t | 2, 4 (0.5) | 3, 1 (3) |",
            "| disk | 7, - | -, - |"])


class Replays(unittest.TestCase):
    def options(self, **changed):
        return argparse.Namespace(**{"speed": 1000, "pause_max_s": 0, "kill": False, "restart": False} | changed)

    def test_requests_are_sent_after_the_replies_that_they_need(self):
        asks = [make_ask(found) for found in chosen(request(0, [1]), request(2, [1, 2]), request(4, [1, 2, 3]))]
        with fake_server() as (port, asked):
            outcomes = agents.Replay(asks, port, self.options()).run()
        self.assertEqual(asked, [0, 2, 4])
        self.assertEqual([len(outcome.times_s) for outcome in outcomes], [2, 2, 2])
        rows = agents.rows_of(outcomes, (8, 9), outcomes[0].sent_s)
        self.assertEqual([row["possible_tokens"] for row in rows], [0, 1, 2])
        figures = agents.figures_of(rows)
        self.assertEqual((figures["requests"], figures["reused_ratio"], figures["computed_ratio"]), (3, 1.0, 1.0))

    def test_what_the_warm_up_has_left_could_be_reused(self):
        found = chosen(request(0, [1, 2, 3]))[0]
        outcome = agents.Outcome(make_ask(found), 0.0, [1.0], {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, {})
        self.assertEqual(agents.rows_of([outcome], (1, 2, 9), 0.0)[0]["possible_tokens"], 2)

    def test_a_reply_of_another_length_fails_the_run(self):
        with fake_server() as (port, _):
            with self.assertRaisesRegex(compare.ContestantFailed, "must have 5 tokens"):
                agents.Replay([make_ask(found, tokens=5) for found in chosen(request(0, [1]))], port, self.options()).run()

    def test_a_reply_that_is_cut_off_fails_the_run(self):
        with fake_server(lambda t: "lost") as (port, _):
            with self.assertRaisesRegex(compare.ContestantFailed, "session s, agent 0, t 0"):
                agents.Replay([make_ask(found) for found in chosen(request(0, [1]))], port, self.options()).run()

    def test_a_request_that_a_kill_cuts_off_is_sent_again(self):
        killed, lost = threading.Event(), []

        def lose_once(t):
            if t == 2 and not lost:
                lost.append(killed.wait(10))
                return "lost"

        asks = [make_ask(found) for found in chosen(request(0, [1]), request(2, [1, 2]), request(4, [1, 2, 3]))]
        with fake_server(lose_once) as (port, asked):
            replay = agents.Replay(asks, port, self.options(kill=True))
            outcomes = replay.run(killed.set)
        self.assertEqual(asked, [0, 2, 2, 4])
        self.assertEqual([outcome.sent_again for outcome in outcomes], [0, 1, 0])
        self.assertIsNotNone(replay.interrupted_s)

    def test_a_restart_waits_for_requests_under_way_and_holds_others(self):
        seen = []
        asks = [make_ask(found) for found in chosen(request(0, [1]), request(2, [1, 2]), request(4, [1, 2, 3]), request(6, [1, 2, 3, 4]))]
        with fake_server() as (port, asked):
            replay = agents.Replay(asks, port, self.options(restart=True))
            replay.run(lambda: seen.append((len(replay.outcomes), replay.under_way, len(asked))))
        (done, running, sent), = seen
        self.assertGreaterEqual(done, 2)
        self.assertEqual((running, sent), (0, done))
        self.assertEqual(asked, [0, 2, 4, 6])


class Charts(unittest.TestCase):
    ROWS = {name: [{"sent_s": 1.0, "first_token_ms": 20.0}, {"sent_s": 9.0, "first_token_ms": 30.0}] for name in agents.CONTESTANTS}

    def test_each_contestant_has_the_time_since_its_own_kill(self):
        svg = agents.draw(self.ROWS, {"umad": {"interrupted_s": 3.0}, "llama-server": {"interrupted_s": 5.0}}, 4, "killed")
        for text in ("4 coding agents", "umad", "llama-server", ">killed<", "time since the server was killed"):
            self.assertIn(text, svg)
        dots = [line for line in svg.splitlines() if "stroke-linecap" in line]
        self.assertEqual(len(dots), 2)
        self.assertNotEqual(*(line.split(' d="')[1] for line in dots))

    def test_without_an_event_there_is_no_mark(self):
        self.assertNotIn('class="mark"', agents.draw(self.ROWS, {}, 4, None))


if __name__ == "__main__":
    unittest.main()
