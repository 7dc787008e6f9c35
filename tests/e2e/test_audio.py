"""Clips of sound in chats, sessions and responses."""

import base64
import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

import sounds
import test_http
from uma import BUILD, TINY, WAIT_S, Daemon, until
from vision import CLI, GRAD, SAME_BITS, question

PROJECTOR = BUILD / "models" / "mmproj-tiny-sound.gguf"
FLAGS = ("--mmproj", PROJECTOR, "--kv-cells", "8192", "--slots", "4", "--threads", "1")
ROWS = 30  # Of each half minute that has begun.
FOLDER = tempfile.TemporaryDirectory(prefix="uma-sounds-")


def clip(data, kind="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}


def message(*clips, text="What is this?"):
    return {"role": "user", "content": [*map(clip, clips), {"type": "text", "text": text}]}


class Audio(test_http.HttpTest):
    model = TINY
    flags = (*FLAGS, "--http", "127.0.0.1:0")
    config = SAME_BITS

    def ask(self, *clips, **fields):
        return self.client.generate(messages=[message(*clips)], **{"max_tokens": 24, **fields})

    def told(self, *clips):
        arguments = []
        for index, data in enumerate(clips):
            path = pathlib.Path(FOLDER.name) / f"{index}.wav"
            path.write_bytes(data)
            arguments += ["--audio", str(path)]
        ran = subprocess.run(["llama-mtmd-cli", "-m", self.model, "--mmproj", PROJECTOR, *arguments, "--temp", "0", "-n", "120", "-t", "1",
                              "-p", "<__media__>" * len(clips) + "What is this?", "--chat-template", "chatml",
                              "--override-kv", "tokenizer.ggml.add_space_prefix=bool:false"],
                             capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True)
        # The tool ends without waiting for its output: sometimes most of the text is missing.
        return ran.stdout.strip() if len(ran.stdout) > 100 else None

    def test_greedy_text_is_that_of_the_packaged_tool(self):
        for name, clips in {"low": (sounds.LOW,), "high": (sounds.HIGH,), "both": (sounds.LOW, sounds.HIGH),
                            "35 s": (sounds.wav(sounds.tone(35, 440)),), "stereo": (sounds.wav(sounds.tone(1, 440, 44_100), 2, 44_100),)}.items():
            with self.subTest(name):
                text = until(lambda clips=clips: self.told(*clips), "llama-mtmd-cli prints a hundred bytes")
                self.assertTrue(self.ask(*clips, max_tokens=120).text.strip().startswith(text), text)

    def test_the_terminal_asks_about_clips(self):
        path = pathlib.Path(FOLDER.name) / "low.wav"
        path.write_bytes(sounds.LOW)
        wanted = self.ask(sounds.LOW).text

        def cli(*arguments, typed=None):
            return subprocess.run([str(CLI), *arguments, "--max-tokens", "24", "--socket", self.daemon.socket_path], input=typed,
                                  capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
        self.assertEqual(wanted.strip(), cli("--prompt", "What is this?", "--audio", str(path)).strip())
        self.assertIn(wanted.strip(), cli("chat", typed=f"/audio {path}\nWhat is this?\n"))

    def test_text_depends_on_the_clip(self):
        self.assertNotEqual(self.ask(sounds.LOW).text, self.ask(sounds.HIGH).text)

    def test_the_same_sound_in_other_files(self):
        samples = sounds.tone(1, 330)
        text = self.ask(sounds.wav(samples)).text
        told = [self.client.generate(messages=[{"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}], max_tokens=24)
                for part in (clip(sounds.flac(samples), "flac"), clip(sounds.wav(samples, channels=2)))]
        self.assertEqual([text, text], [reply.text for reply in told])

    def test_a_clip_counts_as_its_rows(self):
        def rows(*clips):
            return self.ask(*clips, max_tokens=1).usage["prompt_tokens"] - none
        none = self.client.generate(messages=[message()], max_tokens=1).usage["prompt_tokens"]
        self.assertEqual([ROWS, 2 * ROWS, ROWS, 3 * ROWS, ROWS],
                         [rows(sounds.LOW), rows(sounds.LOW, sounds.HIGH), rows(sounds.wav([7])), rows(sounds.wav(sounds.tone(61, 440))),
                          rows(sounds.silent_mp3(30))])

    def test_hostile_clips_are_refused_and_nothing_else_happens(self):
        for name, data in sounds.hostile_clips().items():
            with self.subTest(name):
                reply = self.client.generate(messages=[message(data)], max_tokens=1)
                self.assert_error(reply, "E_PROTO_003", "input_audio.data" if name == "empty" else "the clip")
                status, answer = self.request("POST", "/v1/chat/completions", {"messages": [message(data)], "max_tokens": 1})
                self.assertEqual(400, status, answer)
        self.assertEqual("eos", self.ask(sounds.LOW, max_tokens=1).last["event"])

    def test_a_clip_is_as_long_as_its_samples_whatever_it_claims(self):
        none = self.client.generate(messages=[message()], max_tokens=1).usage["prompt_tokens"]
        for name, data in sounds.boastful_clips().items():
            with self.subTest(name):
                reply = self.client.generate(messages=[message(data)], max_tokens=1)
                if reply.last["event"] == "error":
                    self.assert_error(reply, "E_PROTO_003", "the clip")
                else:
                    self.assertEqual(none + ROWS, reply.usage["prompt_tokens"])

    def test_parts_that_are_wrong(self):
        data = base64.b64encode(sounds.LOW).decode()
        for part, field in (({"type": "input_audio"}, "input_audio"), ({"type": "input_audio", "input_audio": 7}, "input_audio"),
                            ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio.data"),
                            ({"type": "input_audio", "input_audio": {"data": data}}, "input_audio.format"),
                            ({"type": "input_audio", "input_audio": {"data": data, "format": "ogg"}}, "input_audio.format"),
                            ({"type": "input_audio", "input_audio": {"data": "#", "format": "wav"}}, "messages[0].content[0]")):
            with self.subTest(part):
                self.assert_error(self.client.generate(messages=[{"role": "user", "content": [part]}]), "E_PROTO_003", field)
        self.assert_error(self.client.generate(messages=[{"role": "system", "content": [clip(sounds.LOW)]}]), "E_PROTO_003", "content")
        self.assert_error(self.client.generate(messages=[message(*[sounds.wav([7])] * 65)]), "E_PROTO_003", "64")

    def test_completions_and_what_the_model_says_of_itself(self):
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": [message(sounds.LOW)], "max_tokens": 24, "temperature": 0})
        self.assertEqual((200, self.ask(sounds.LOW).text), (status, answer["choices"][0]["message"]["content"]))
        _, models = self.request("GET", "/v1/models")
        self.assertIn("audio", models["data"][0]["capabilities"])
        self.assertNotIn("vision", models["data"][0]["capabilities"])
        model = self.client.models()[0]
        self.assertEqual((False, True), (model["reads_images"], model["reads_audio"]))

    def test_responses_have_clips_among_their_items(self):
        parts = [clip(sounds.LOW), {"type": "input_text", "text": "What is this?"}]
        body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 24, "temperature": 0}
        status, answer = self.request("POST", "/v1/responses", body)
        self.assertEqual(200, status, answer)
        self.assertEqual(self.ask(sounds.LOW).text, answer["output"][0]["content"][0]["text"])
        # OpenAI's reference has no clips among listed items.
        connection = self.connect()
        connection.request("GET", f"/v1/responses/{answer['id']}/input_items")
        self.assertEqual(parts, json.loads(connection.getresponse().read())["data"][0]["content"])

    def test_images_are_refused(self):
        self.assert_error(self.client.generate(messages=[question(GRAD)], max_tokens=1), "E_MODEL_003", "reads no images")

    def test_a_session_travels_with_its_clips(self):
        session = self.client.create_session(mode="chat")
        self.client.generate(session_id=session, messages=[message(sounds.HIGH)], max_tokens=8)
        status, _ = self.request("GET", f"/v1/sessions/{session}")
        self.assertEqual(200, status)
        connection = self.connect()
        connection.request("GET", f"/v1/sessions/{session}/export")
        file = connection.getresponse().read()
        status, copy = self.request("POST", "/v1/sessions/import?name=copy", file)
        self.assertEqual(200, status, copy)
        told = [self.client.generate(session_id=each, messages=[message(text="And now?")], max_tokens=8).text
                for each in (session, copy["session_id"])]
        self.assertEqual(*told)


class GridAudio(Audio):
    """The same for a model with positions of several dimensions (M-RoPE)."""
    model = BUILD / "models" / "tiny-grid.gguf"


class AudioSessions(unittest.TestCase):
    def test_a_clip_is_found_again_and_not_encoded(self):
        clip_of_a_minute = sounds.wav(sounds.tone(61, 550))
        for model in (TINY, GridAudio.model):
            with self.subTest(model.stem), Daemon(model, *FLAGS) as daemon, daemon.client() as client:
                first = client.generate(messages=[message(clip_of_a_minute)], max_tokens=2)
                again = client.generate(messages=[message(clip_of_a_minute)], max_tokens=2)
                self.assertEqual(first.text, again.text)
                self.assertGreater(again.usage["reused_tokens"], 3 * ROWS)
                self.assertEqual(1, client.metrics()["images_encoded_total"])

    def test_a_session_goes_on_after_a_restart_without_encoding_again(self):
        for model in (TINY, GridAudio.model):
            with self.subTest(model.stem), Daemon(model, *FLAGS, config=SAME_BITS) as daemon:
                with daemon.client() as client:
                    session = client.create_session(mode="chat")
                    for clips in ((sounds.LOW,), (), (sounds.HIGH, sounds.LOW)):
                        client.generate(session_id=session, messages=[message(*clips)], max_tokens=8)
                    twin = client.call(type="fork_session", session_id=session)["session_id"]
                    wanted = client.generate(session_id=twin, messages=[message()], max_tokens=16).text
                daemon.signal(signal.SIGTERM)
                daemon.wait()
                daemon.start().wait_ready()
                with daemon.client() as client:
                    reply = client.generate(session_id=session, messages=[message()], max_tokens=16)
                    self.assertEqual((wanted, "cold"), (reply.text, reply.usage["tier"]))
                    self.assertGreater(reply.usage["reused_tokens"], 3 * ROWS)
                    self.assertEqual(0, client.metrics()["images_encoded_total"])

    def test_after_a_kill_it_is_computed_from_the_kept_files(self):
        with Daemon(TINY, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                client.generate(session_id=session, messages=[message(sounds.LOW)], max_tokens=8)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = client.generate(session_id=twin, messages=[message()], max_tokens=16).text
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon.start().wait_ready()
            with daemon.client() as client:
                self.assertEqual(wanted, client.generate(session_id=session, messages=[message()], max_tokens=16).text)
                self.assertEqual(1, client.metrics()["images_encoded_total"])


class NoAudio(test_http.HttpTest):
    def test_clips_are_refused_by_what_the_model_cannot(self):
        self.assert_error(self.client.generate(messages=[message(sounds.wav([7]))]), "E_MODEL_003", "reads no audio")
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": [message(sounds.wav([7]))]})
        self.assertEqual((400, "E_MODEL_003"), (status, answer["error"]["code"]))
        self.assertFalse(self.client.models()[0]["reads_audio"])

    def test_a_projector_of_images_hears_nothing(self):
        flags = ("--mmproj", BUILD / "models" / "mmproj-tiny-register.gguf", "--kv-cells", "4096")
        with Daemon(BUILD / "models" / "tiny-register.gguf", *flags) as daemon, daemon.client() as client:
            self.assert_error(client.generate(messages=[message(sounds.LOW)]), "E_MODEL_003", "reads no audio")


if __name__ == "__main__":
    unittest.main()
