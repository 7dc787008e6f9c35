"""The cost of a long text grows with its length and not faster, in every field that takes one."""

import json
import pathlib
import unittest

import test_http
import uma

BYTES = 1 << 18  # of the short text; the long one has four times as many
NOISE = 2  # the long one may cost so much more for each byte; a cost that grows with the square is 4
MEASURED_MS = 400  # what costs less for the long text says nothing on a busy machine; by the square 1 MiB takes 10 s and more
TIMES = 3  # of which the cheapest counts, as other programs disturb

# Texts that were tokenized one by one, or in time that grew with the square of their parts.
TEXTS = {"words": "some words and 12 numbers. ", "marks": "<|im_end|>", "lines": "\n", "letters": "a", "brackets": "<", "accents": "é́", "signs": "🙂"}


class TextCost(test_http.HttpTest):
    takes_long = True
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "2048")

    def cpu_ms(self):
        tasks = pathlib.Path(f"/proc/{self.daemon.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6

    def cost_ms(self, path, body):
        """CPU time of the daemon for the request; whether it is served or refused."""
        data = json.dumps(body)
        costs = []
        for _ in range(TIMES):
            before = self.cpu_ms()
            connection = self.connect()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            self.assertIn(answer.status, (200, 400), path)
            costs.append(self.cpu_ms() - before)
        return min(costs)

    def check(self, path, body_of):
        once, four_times = (self.cost_ms(path, body_of(size)) for size in (BYTES, 4 * BYTES))
        if four_times >= MEASURED_MS:
            self.assertLess(four_times, NOISE * 4 * max(once, MEASURED_MS / 4), f"{once:.0f} ms for {BYTES} bytes, {four_times:.0f} ms for four times as many")

    def test_one_text(self):
        for name, unit in TEXTS.items():
            for path, body in (("/tokenize", lambda text: {"content": text}), ("/tokenize", lambda text: {"content": text, "parse_special": False}),
                               ("/v1/completions", lambda text: {"prompt": text, "max_tokens": 1}),
                               ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
                               ("/v1/messages/count_tokens", lambda text: {"messages": [{"role": "user", "content": text}]}),
                               ("/v1/sessions", lambda text: {"mode": "chat", "system": text}),
                               ("/v1/responses", lambda text: {"input": "a", "instructions": text, "max_output_tokens": 16})):
                with self.subTest(text=name, path=path):
                    self.check(path, lambda size, body=body, unit=unit: body(unit * (size // len(unit.encode()))))

    def test_many_messages(self):
        for content in ("", "a"):
            message = {"role": "user", "content": content}
            for path, body in (("/v1/chat/completions", {"max_tokens": 1}), ("/v1/messages/count_tokens", {})):
                with self.subTest(content=content, path=path):
                    self.check(path, lambda size, body=body, message=message: {**body, "messages": [message] * (size // 32)})


if __name__ == "__main__":
    unittest.main()
