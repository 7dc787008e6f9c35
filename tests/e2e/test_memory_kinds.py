"""Models that cannot be cut at any token (docs/decisions/0016), through the daemon: turns, rewinds, repeats, forks, parallel
sessions."""

import pathlib
import subprocess
import tempfile
import unittest

import uma

OPTIONS = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}


class MemoryKind:
    flags = ("--kv-cells", "8192", "--slots", "4")
    takes_back = (("warm", "checkpoint"),)  # tier and reason after a rewind

    def test_a_session_lives_through_everything(self):
        session = self.client.create_session(mode="text")
        self.client.append(session, "one two three " * 40)
        self.assertEqual(12, self.client.generate_stream(session, **OPTIONS).usage["completion_tokens"])
        self.client.append(session, " four")
        second = self.client.generate_stream(session, **OPTIONS)
        self.assertGreater(second.usage["reused_tokens"], 100, "a turn that only adds is hot")

        def regenerate():
            return self.client.finish(self.client.start(type="regenerate", session_id=session, **OPTIONS))

        self.assertEqual(regenerate().text, regenerate().text)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=session, turn=0)["event"])
        other = self.another_client()
        one, two = uma.parallel(
            lambda: self.client.generate(" five", session_id=session, **OPTIONS),
            lambda: other.generate(" six", session_id=fork, **OPTIONS),
        )
        for reply in (one, two):
            self.assertEqual(12, reply.usage["completion_tokens"])

    def test_what_is_taken_back_goes_on_from_the_end_of_a_turn(self):
        session = self.client.create_session(mode="text")
        lengths = []  # lengths of the chain, after each turn
        for turn in range(5):
            self.client.generate(f" turn {turn}" + " one two three" * 20, session_id=session, **OPTIONS)
            lengths.append(self.client.session(session)["tokens"])
        for _ in range(6):
            again = self.client.finish(self.client.start(type="regenerate", session_id=session, **OPTIONS))
            self.assertGreaterEqual(again.usage["reused_tokens"], lengths[3] - 1, again.usage)
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=session, turn=2)["event"])
        other = self.client.generate(" another way", session_id=session, **OPTIONS)
        self.assertGreaterEqual(other.usage["reused_tokens"], lengths[2] - 1, other.usage)
        self.assertIn((other.usage["tier"], other.usage["reuse_reason"]), self.takes_back)

    def test_long_prompts_beside_streams(self):
        clients = [self.another_client() for _ in range(6)]
        prompts = ["the dog and the cat " * (5 if index % 2 else 150) for index in range(6)]
        replies = uma.parallel(*(
            lambda client=client, prompt=prompt: client.generate(prompt, max_tokens=40, ignore_eos=True)
            for client, prompt in zip(clients, prompts)
        ))
        self.assertEqual([40] * 6, [reply.usage["completion_tokens"] for reply in replies])
        again = self.client.generate(prompts[1], max_tokens=40, ignore_eos=True)
        self.assertEqual(40, again.usage["completion_tokens"])


class Window(MemoryKind, uma.DaemonTest):
    model = uma.BUILD / "models" / "tiny-swa.gguf"
    takes_back = (("warm", "checkpoint"), ("hot", "hot"))  # hot: the window is still there


class WindowAndSinks(MemoryKind, uma.DaemonTest):
    """Every second layer has a window; all have attention sinks and experts."""
    model = uma.BUILD / "models" / "tiny-gpt-oss.gguf"
    takes_back = (("warm", "checkpoint"), ("hot", "hot"))


class LongWindow(unittest.TestCase):
    def test_prompts_of_a_window_longer_than_their_context_are_computed_once(self):
        with tempfile.TemporaryDirectory(prefix="uma-window-") as folder:
            model = pathlib.Path(folder) / "window.gguf"
            subprocess.run([str(uma.BUILD / "bin" / "make_model"), "--preset", "tiny-swa", "--window", "3000", "--n-ctx", "8192", "--out",
                            str(model)], check=True, capture_output=True, timeout=uma.WAIT_S)
            config = "kv: {layout: unified}\n"
            with uma.Daemon(model, "--kv-cells", "8192", "--slots", "4", config=config) as daemon:
                with daemon.client() as stream, daemon.client() as client:
                    request = stream.start(type="generate", prompt="one two", max_tokens=400, ignore_eos=True)
                    reply = client.generate("the dog and the cat " * 300, max_tokens=4, ignore_eos=True)
                    self.assertEqual(4, reply.usage["completion_tokens"])
                    stream.finish(request)
                self.assertNotIn("computed again", daemon.log())


class State(MemoryKind, uma.DaemonTest):
    model = uma.BUILD / "models" / "tiny-recurrent.gguf"


class Hybrid(MemoryKind, uma.DaemonTest):
    model = uma.BUILD / "models" / "tiny-hybrid.gguf"


if __name__ == "__main__":
    unittest.main()
