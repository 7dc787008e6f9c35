"""Embeddings and reranking on both listeners, and against the packaged llama-server."""

import base64
import json
import math
import re
import struct
import subprocess
import unittest
import urllib.error
import urllib.request

import uma

EMBED = uma.BUILD / "models" / "tiny-embed.gguf"
RERANK = uma.BUILD / "models" / "tiny-rerank.gguf"
WORDPIECE = uma.BUILD / "models" / "tiny-wordpiece.gguf"
WORDPIECE_RANK = uma.BUILD / "models" / "tiny-wordpiece-rank.gguf"

# Scores are the model's own, of any size. On the variants of the CPU backend the score of a pair differed by up to 2.8e-4 with
# the other texts of its call.
SCORE_DELTA = 1e-3
EXACT = "kv: {flash_attention: off}\n"  # else a text's vector depends on the others of its call in the fourth digit

TEXTS = ["the dog sat by the door", "a cat", "x", "Where is the station?", "naïve café ☕ 東京", "word " * 60, "  spaces   and\ttabs "]
QUERY = "Where is the station?"


def length(vector):
    return math.sqrt(sum(value * value for value in vector))


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other)) / (length(one) * length(other))


def from_base64(text):
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


class EmbeddingTest(uma.DaemonTest):
    model = EMBED
    flags = ("--http", "127.0.0.1:0")
    config = EXACT

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.url = re.search(r"http +(http://127\.0\.0\.1:\d+)/v1", cls.daemon.log()).group(1)

    def post(self, path, body):
        """Returns status and answer."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=uma.WAIT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def embed(self, texts, **fields):
        answer = self.client.call(type="embed", texts=texts, **fields)
        self.assertEqual("embedding", answer["event"], answer)
        return answer["embeddings"]

    def assert_close(self, one, other, what=""):
        self.assertEqual(len(one), len(other), what)
        self.assertLessEqual(max(abs(a - b) for a, b in zip(one, other)), 1e-4, what)
        self.assertGreaterEqual(cosine(one, other), 0.9999, what)

    def assert_error(self, answer, code, part):
        self.assertEqual(("error", code), (answer["event"], answer["code"]), answer)
        self.assertIn(part, answer["message"])


class Vectors(EmbeddingTest):
    def test_a_text_has_the_same_vector_in_any_company(self):
        together = self.embed(TEXTS)
        for text, vector in zip(TEXTS, together):
            self.assert_close(self.embed([text])[0], vector, text)
            self.assertAlmostEqual(1, length(vector), places=4)
        self.assertLess(cosine(together[0], together[1]), 0.999)

    def test_openai_and_the_socket_say_the_same(self):
        status, answer = self.post("/v1/embeddings", {"input": TEXTS, "model": "tiny-embed"})
        self.assertEqual(200, status, answer)
        self.assertEqual(("list", "tiny-embed"), (answer["object"], answer["model"]))
        self.assertEqual([("embedding", i) for i in range(len(TEXTS))], [(each["object"], each["index"]) for each in answer["data"]])
        self.assertEqual(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"])
        for each, vector in zip(answer["data"], self.embed(TEXTS)):
            self.assert_close(each["embedding"], vector)
        _, encoded = self.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
        self.assert_close(answer["data"][0]["embedding"], from_base64(encoded["data"][0]["embedding"]))

    def test_tokens_are_taken_as_they_are(self):
        _, one = self.post("/v1/embeddings", {"input": [1, 300, 301, 2]})
        _, nested = self.post("/v1/embeddings", {"input": [[1, 300, 301, 2], [1, 400, 2]]})
        self.assert_close(one["data"][0]["embedding"], nested["data"][0]["embedding"])
        self.assertEqual((4, 7), (one["usage"]["prompt_tokens"], nested["usage"]["prompt_tokens"]))
        status, refused = self.post("/v1/embeddings", {"input": [1, 99999]})
        self.assertEqual((400, "E_PROTO_003"), (status, refused["error"]["code"]))
        self.assertIn("99999", refused["error"]["message"])

    def test_fewer_dimensions_are_the_first_ones_at_length_one(self):
        whole = self.embed(TEXTS[:1])[0]
        short = self.embed(TEXTS[:1], dimensions=8)[0]
        scale = length(whole[:8])
        self.assert_close([value / scale for value in whole[:8]], short)
        self.assert_error(self.client.call(type="embed", texts=["a"], dimensions=65), "E_PROTO_003", "65")
        raw = self.embed(TEXTS[:1], normalize=False)[0]
        self.assertGreater(abs(length(raw) - 1), 0.01)
        self.assertGreaterEqual(cosine(raw, whole), 0.9999)

    def test_a_long_text_is_refused_cut_or_divided(self):
        text = "word " * 300
        self.assert_error(self.client.call(type="embed", texts=["a", text]), "E_LIMIT_001", "the limit of the model is 128")
        cut = self.embed([text], long_input="truncate")[0]
        divided = self.client.call(type="embed", texts=[text], long_input="chunk")
        self.assertAlmostEqual(1, length(divided["embeddings"][0]), places=4)
        self.assertGreater(divided["usage"]["prompt_tokens"], 300)
        self.assertLess(cosine(cut, divided["embeddings"][0]), 0.99999)
        status, refused = self.post("/v1/embeddings", {"input": text})
        self.assertEqual((400, "context_length_exceeded"), (status, refused["error"]["code"]))
        status, _ = self.post("/v1/embeddings", {"input": text, "uma": {"long_input": "chunk"}})
        self.assertEqual(200, status)

    def test_bad_requests_are_refused_by_name(self):
        for body, part in ((dict(), "input"), (dict(input=""), "must not be empty"), (dict(input=[]), "at least one"),
                           (dict(input=["a", ""]), "input[1]"), (dict(input=["a", 3]), "input[1]"), (dict(input=[1, "a"]), "token ids"),
                           (dict(input=["a"] * 2049), "2048"), (dict(input="a", dimensions=0), "dimensions"),
                           (dict(input="a", encoding_format="hex"), "encoding_format"),
                           (dict(input="a", uma=dict(task="query")), 'no task "query"'),
                           (dict(input="a", uma=dict(long_input="drop")), "uma.long_input")):
            status, answer = self.post("/v1/embeddings", body)
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]), answer)
            self.assertIn(part, answer["error"]["message"])
        status, answer = self.post("/v1/embeddings", {"input": "a", "model": "other"})
        self.assertEqual((200, "tiny-embed"), (status, answer["model"]), "no other model can be meant")

    def test_other_capabilities_are_refused(self):
        self.assert_error(self.client.generate("hi").last, "E_MODEL_003", "text_embedding")
        self.assert_error(self.client.call(type="create_session"), "E_MODEL_003", "text_embedding")
        self.assert_error(self.client.call(type="rerank", query="a", documents=["b"]), "E_MODEL_003", "rerank")
        self.assertEqual("text_embedding", self.client.models()[0]["capability"])
        self.assertEqual(64, self.client.models()[0]["dimensions"])

    def test_a_cancel_and_a_client_that_leaves_free_the_queue(self):
        busy = self.client.start(type="embed", texts=["word " * 100] * 2048)
        self.assertTrue(self.client.call(type="cancel", target=busy)["cancelled"])
        self.assert_error(self.client.finish(busy).last, "E_LIMIT_003", "cancelled")
        leaving = self.daemon.client()
        leaving.start(type="embed", texts=["word " * 100] * 2048)
        leaving.close()
        uma.until(lambda: self.client.metrics()["embed_queue_depth"] == 0 and self.client.metrics()["requests_open"] == 0,
                  "the texts of a client that left are gone")

    def test_a_deadline_passes(self):
        answer = self.client.call(type="embed", texts=["word " * 100] * 2000, deadline_ms=1)
        self.assert_error(answer, "E_LIMIT_003", "deadline")

    def test_many_clients_at_once(self):
        alone = self.embed(TEXTS)

        def ask(index):
            with self.daemon.client() as client:
                for round_ in range(5):
                    chosen = [(index + round_ + i) % len(TEXTS) for i in range(1 + index % 3)]
                    answer = client.call(type="embed", texts=[TEXTS[i] for i in chosen])
                    for i, vector in zip(chosen, answer["embeddings"]):
                        self.assert_close(alone[i], vector, TEXTS[i])
        uma.parallel(*[lambda index=index: ask(index) for index in range(8)])
        metrics = self.client.metrics()
        self.assertEqual(0, metrics["embed_queue_depth"])
        self.assertGreater(metrics["embed_texts_total"], metrics["embed_calls_total"])

    def test_a_stop_ends_what_waits(self):
        with uma.Daemon(EMBED, config=EXACT) as daemon:
            client = daemon.client()
            self.addCleanup(client.close)
            request = client.start(type="embed", texts=["word " * 100] * 512)
            uma.until(lambda: self.metrics_of(daemon)["embed_calls_total"] > 0, "it is computed")
            daemon.signal(uma.signal.SIGTERM)
            reply = client.finish(request)
            self.assertIn(reply.last["event"], ("embedding", "error"))
            self.assertEqual(0, daemon.wait())

    @staticmethod
    def metrics_of(daemon):
        with daemon.client() as client:
            return client.metrics()


class Scores(EmbeddingTest):
    model = RERANK

    def test_documents_come_by_their_scores(self):
        documents = TEXTS
        answer = self.client.call(type="rerank", query=QUERY, documents=documents)
        self.assertEqual("rerank", answer["event"], answer)
        scores = [result["score"] for result in answer["results"]]
        self.assertEqual(sorted(scores, reverse=True), scores)
        self.assertEqual(list(range(len(documents))), sorted(result["index"] for result in answer["results"]))
        for result in answer["results"]:
            alone = self.client.call(type="rerank", query=QUERY, documents=[documents[result["index"]]])
            self.assertAlmostEqual(result["score"], alone["results"][0]["score"], delta=SCORE_DELTA)

    def test_the_rerank_api(self):
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            status, answer = self.post(path, {"query": QUERY, "documents": TEXTS[:3], "top_n": 2, "return_documents": True})
            self.assertEqual(200, status, answer)
            self.assertEqual(2, len(answer["results"]))
            for result in answer["results"]:
                self.assertEqual(TEXTS[result["index"]], result["document"]["text"])
                self.assertIsInstance(result["relevance_score"], float)
            self.assertGreater(answer["usage"]["total_tokens"], 0)
        _, plain = self.post("/v1/rerank", {"query": QUERY, "documents": [{"text": "a"}]})
        self.assertNotIn("document", plain["results"][0])

    def test_bad_requests_are_refused_by_name(self):
        for body, part in ((dict(documents=["a"]), "query"), (dict(query="a"), "documents"), (dict(query="a", documents=[]), "at least one"),
                           (dict(query="a", documents=["b", 1]), "documents[1]"), (dict(query="a", documents=["b"], top_n=0), "top_n"),
                           (dict(query="a", documents=["b"], uma=dict(long_input="chunk")), "long_input")):
            status, answer = self.post("/v1/rerank", body)
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]), answer)
            self.assertIn(part, answer["error"]["message"])
        self.assert_error(self.client.call(type="rerank", query="a", documents=["word " * 300]), "E_LIMIT_001", "128")
        cut = self.client.call(type="rerank", query="a", documents=["word " * 300], long_input="truncate")
        self.assertEqual(128, cut["usage"]["prompt_tokens"])
        self.assert_error(self.client.call(type="embed", texts=["a"]), "E_MODEL_003", "rerank")


class ChatModels(uma.DaemonTest):
    def test_they_have_no_vectors(self):
        for request in (dict(type="embed", texts=["a"]), dict(type="rerank", query="a", documents=["b"])):
            answer = self.client.call(**request)
            self.assertEqual(("error", "E_MODEL_003"), (answer["event"], answer["code"]), answer)
        self.assertTrue(self.client.generate("Once", max_tokens=2).text)


class Cli(EmbeddingTest):
    def run_cli(self, *arguments, text=None):
        return subprocess.run([uma.BUILD / "bin" / "uma-cli", *arguments, "--socket", self.daemon.socket_path], input=text,
                              capture_output=True, text=True, timeout=uma.WAIT_S, check=False)

    def test_texts_of_arguments_and_of_standard_input(self):
        ran = self.run_cli("embed", *TEXTS[:2])
        self.assertEqual(0, ran.returncode, ran.stderr)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual(TEXTS[:2], [line["text"] for line in lines])
        for line, vector in zip(lines, self.embed(TEXTS[:2])):
            self.assert_close(vector, line["embedding"])
        many = self.run_cli("embed", "--dimensions", "4", text="\n".join(f"line {i}" for i in range(150)))
        self.assertEqual(150, len(many.stdout.splitlines()), many.stderr)
        self.assertEqual(4, len(json.loads(many.stdout.splitlines()[-1])["embedding"]))

    def test_mistakes(self):
        self.assertEqual(1, self.run_cli("embed", text="\n\n").returncode)
        refused = self.run_cli("rerank", "--query", "a", "b")
        self.assertEqual(2, refused.returncode)
        self.assertIn("E_MODEL_003", refused.stderr)


class AgainstLlamaServer(EmbeddingTest):
    """The models that the build makes. llama-server runs without flash attention too: it sums in 16 bits, which alone changes
    vectors by more than 1e-4."""

    rank_model = RERANK

    def test_the_same_vectors(self):
        with uma.LlamaServer(self.model, "--embedding", "-fa", "off") as peer:
            theirs = json.loads(peer.post("/v1/embeddings", {"input": TEXTS}))["data"]
        ours = self.embed(TEXTS)
        for i, text in enumerate(TEXTS):
            self.assert_close(theirs[i]["embedding"], ours[i], text)

    def test_nearly_the_same_with_flash_attention(self):
        with uma.LlamaServer(self.model, "--embedding") as peer, uma.Daemon(self.model) as daemon, daemon.client() as client:
            theirs = json.loads(peer.post("/v1/embeddings", {"input": TEXTS}))["data"]
            ours = client.call(type="embed", texts=TEXTS)["embeddings"]
        for i, text in enumerate(TEXTS):
            self.assertGreaterEqual(cosine(theirs[i]["embedding"], ours[i]), 0.9999, text)

    def test_the_same_scores(self):
        with uma.LlamaServer(self.rank_model, "--rerank", "-fa", "off") as peer, uma.Daemon(self.rank_model, config=EXACT) as daemon, daemon.client() as client:
            theirs = json.loads(peer.post("/v1/rerank", {"query": QUERY, "documents": TEXTS}))["results"]
            ours = client.call(type="rerank", query=QUERY, documents=TEXTS)["results"]
        expected = {result["index"]: result["relevance_score"] for result in theirs}
        self.assertEqual(len(TEXTS), len(ours))
        for result in ours:
            self.assertAlmostEqual(expected[result["index"]], result["score"], delta=SCORE_DELTA, msg=TEXTS[result["index"]])


class AgainstLlamaServerOnLastTokens(AgainstLlamaServer):
    """A model with a cache, whose vector of a text is that of the last token."""

    model = uma.BUILD / "models" / "tiny-embed-last.gguf"


class AgainstLlamaServerOnWordPieces(AgainstLlamaServer):
    model = WORDPIECE
    rank_model = WORDPIECE_RANK


if __name__ == "__main__":
    unittest.main()
