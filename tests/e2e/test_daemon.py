"""The process: start, configuration, signals, socket file, metrics, memory of several workers."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import unittest

import uma


class CommandLine(unittest.TestCase):
    def test_help(self):
        result = uma.run_umad("--help")
        self.assertEqual(0, result.returncode)
        for flag in ("--model", "--socket", "--config", "--kv-cells", "--slots", "--threads", "--workers", "--max-tokens", "--data-dir",
                     "--policy"):
            self.assertIn(flag, result.stdout)
        self.assertEqual("", result.stderr)

    def test_version(self):
        result = uma.run_umad("--version")
        self.assertEqual(0, result.returncode)
        self.assertRegex(result.stdout, r"^umad \d+\.\d+\.\d+")

    def test_usage_errors(self):
        for flags, part in ((("--model", "no-such-model"), 'no model "no-such-model"'), (("--model", "x", "--turbo"), "--turbo"),
                            (("--model", "x", "--slots", "many"), "--slots"), (("--model", "x", "--slots", "0"), "1 to 256"),
                            (("--model", "x", "--workers", "65"), "1 to 64"), (("--model", "x", "--policy", "fastest"), "time_slice")):
            with self.subTest(flags=flags):
                result = uma.run_umad(*flags)
                self.assertEqual(1, result.returncode)
                self.assertIn(part, result.stderr)
                self.assertEqual("", result.stdout)

    def start_with(self, config):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "u.yaml"
            path.write_text(config)
            result = uma.run_umad("--config", path, "--socket", f"{folder}/s", "--data-dir", f"{folder}/d")
            return result.returncode, result.stderr

    def test_all_errors_of_a_file_with_their_lines(self):
        status, text = self.start_with("model: x\nlimits:\n  max_tokens: many\n  max_tokns: 3\nslots: 1000\n")
        self.assertEqual(1, status)
        self.assertIn("u.yaml:3:15: limits.max_tokens: expected an integer", text)
        self.assertIn('got "many"', text)
        self.assertIn('u.yaml:4:3: unknown key "max_tokns" in limits', text)
        self.assertIn("u.yaml:5:8: slots: expected an integer from 1 to 256", text)

    def test_a_model_that_cannot_be_loaded_ends_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            garbage = pathlib.Path(folder) / "garbage.gguf"
            garbage.write_bytes(b"GGUF" + os.urandom(4000))
            half = pathlib.Path(folder) / "half.gguf"
            half.write_bytes(uma.TINY.read_bytes()[:200_000])
            for path in (garbage, half, f"{folder}/missing.gguf", folder):
                with self.subTest(path=path):
                    result = uma.run_umad("--model", path, "--socket", f"{folder}/s", "--data-dir", f"{folder}/d")
                    self.assertEqual(1, result.returncode, result.stderr)
                    self.assertIn(str(path), result.stderr)
                    self.assertFalse(os.path.exists(f"{folder}/s"), "the socket file is gone")

    def test_a_model_whose_header_the_library_would_not_survive(self):
        """Each of these changes ends the process if libllama reads the file."""
        whole = uma.TINY.read_bytes()
        u32, f32 = 4, 6
        changes = {
            "llama.block_count": struct.pack("<II", u32, 0),
            "llama.embedding_length": struct.pack("<II", u32, 0),
            "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", f32, -1.0),
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "hostile.gguf"
            for key, value in changes.items():
                with self.subTest(key=key):
                    at = whole.index(key.encode()) + len(key)
                    path.write_bytes(whole[:at] + value + whole[at + len(value):])
                    result = uma.run_umad("--model", path, "--socket", f"{folder}/s", "--data-dir", f"{folder}/d")
                    self.assertEqual(1, result.returncode, result.stderr)
                    self.assertIn(key.rsplit(".", 1)[-1], result.stderr)
                    self.assertIn(str(path), result.stderr)

    def test_a_data_folder_that_cannot_be_made(self):
        with tempfile.TemporaryDirectory() as folder:
            in_the_way = pathlib.Path(folder) / "file"
            in_the_way.write_text("")
            result = uma.run_umad("--model", uma.TINY, "--socket", f"{folder}/s", "--data-dir", in_the_way / "below")
            self.assertEqual(1, result.returncode)
            self.assertIn("Not a directory", result.stderr)

    def test_a_socket_that_cannot_be_made(self):
        result = uma.run_umad("--model", uma.TINY, "--socket", "/nonexistent/s", "--data-dir", tempfile.gettempdir())
        self.assertEqual(1, result.returncode)
        self.assertIn("/nonexistent", result.stderr)


class Configuration(unittest.TestCase):
    def test_the_first_designs_file(self):
        """The YAML of the seed document starts the daemon once its paths exist."""
        with tempfile.TemporaryDirectory(prefix="uma-e2e-") as folder:
            config = f"""
model: "{uma.TINY}"
ipc:
  uds_path: "{folder}/seed.sock"
  backlog: 64
limits:
  max_sessions: 32
  max_prompt_bytes: 65536
  max_tokens: 2048
scheduler:
  max_merge: 2
  latency_cap: 1.20
metrics:
  tick_interval_ms: 1000
"""
            daemon = uma.Daemon(None, "--data-dir", f"{folder}/data", config=config, own_paths=False)
            daemon.socket_path = pathlib.Path(folder) / "seed.sock"
            with daemon:
                with daemon.client() as client:
                    self.assertEqual("eos", client.generate("one", max_tokens=2).last["event"])
                self.assertIn("scheduler.max_merge", daemon.log())
                self.assertIn("obsolete", daemon.log())

    def test_keys_whose_feature_comes_later_are_named_in_the_log(self):
        with uma.Daemon(config="metrics: {tick_interval_ms: 500}\n") as daemon:
            self.assertRegex(daemon.log(), r"no effect.*metrics\.tick_interval_ms")

    def test_flags_win_over_the_environment_and_that_over_the_file(self):
        config = "slots: 2\nworkers: 1\nlimits: {max_tokens: 7}\n"
        with uma.Daemon(uma.TINY, "--workers", "2", config=config, environment={"UMA_WORKERS": "3", "UMA_SLOTS": "4"}) as daemon:
            with daemon.client() as client:
                model = client.models()[0]
                self.assertEqual((4, 2), (model["slots"], model["workers"]))
                self.assertEqual(7, client.generate("one", max_tokens=50, ignore_eos=True).usage["completion_tokens"])

    def test_everything_from_the_environment(self):
        with tempfile.TemporaryDirectory(prefix="uma-e2e-") as folder:
            config = pathlib.Path(folder) / "u.yaml"
            config.write_text("limits: {deadline_ms: 60000}\n")
            daemon = uma.Daemon(None, own_paths=False, environment={
                "UMA_MODEL": uma.TINY, "UMA_SOCKET": f"{folder}/env.sock", "UMA_KV_CELLS": 1024, "UMA_SLOTS": 2, "UMA_THREADS": 1,
                "UMA_WORKERS": 1, "UMA_MAX_TOKENS": 3, "UMA_DATA_DIR": f"{folder}/data", "UMA_CONFIG": config, "UMA_DEBUG": 1})
            daemon.socket_path = pathlib.Path(folder) / "env.sock"
            with daemon, daemon.client() as client:
                self.assertEqual(3, client.generate("one", ignore_eos=True).usage["completion_tokens"])
                self.assertEqual(2, client.models()[0]["slots"])
                self.assertTrue((pathlib.Path(folder) / "data").is_dir())
                self.assertIn("debug", daemon.log())

    def test_both_kv_layouts(self):
        texts = set()
        for layout in ("split", "unified"):
            with uma.Daemon(uma.TINY, "--kv-cells", "1024", "--slots", "2", config=f"kv: {{layout: {layout}}}") as daemon:
                with daemon.client() as client:
                    self.assertEqual(layout, client.models()[0]["kv_layout"])
                    texts.add(client.generate("one two", max_tokens=5, ignore_eos=True).text)
        self.assertEqual(1, len(texts))


class SocketFile(unittest.TestCase):
    def test_a_stale_socket_is_replaced(self):
        daemon = uma.Daemon()
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dead.bind(str(daemon.socket_path))
        dead.close()  # no process listens any more; the file stays
        with daemon:
            self.assertEqual(0o600, stat.S_IMODE(os.stat(daemon.socket_path).st_mode))

    def test_a_socket_left_by_kill_9_is_replaced(self):
        first = uma.Daemon()
        with uma.Daemon() as second:
            first.socket_path = second.socket_path
            second.process.kill()
            second.wait()
            self.assertTrue(second.socket_path.exists())
            second.start().wait_ready()
            self.assertEqual(0, second.terminate())
        first.kill()

    def test_a_second_daemon_on_the_same_socket_is_refused_and_the_first_serves_on(self):
        with uma.Daemon() as daemon, daemon.client() as client:
            result = uma.run_umad("--model", uma.TINY, "--socket", daemon.socket_path, "--data-dir", daemon.folder / "second")
            self.assertEqual(1, result.returncode)
            self.assertIn(str(daemon.socket_path), result.stderr)
            self.assertEqual("pong", client.call(type="ping")["event"])
            with daemon.client() as later:
                self.assertEqual("pong", later.call(type="ping")["event"])

    def test_a_file_that_is_no_socket_is_kept(self):
        daemon = uma.Daemon()
        daemon.socket_path.write_text("precious")
        daemon.start()
        self.assertEqual(1, daemon.wait())
        self.assertEqual("precious", daemon.socket_path.read_text())
        self.assertIn(str(daemon.socket_path), daemon.log())
        daemon.kill()

    def test_the_socket_file_is_gone_after_a_clean_end(self):
        with uma.Daemon() as daemon:
            self.assertEqual(0, daemon.terminate())
            self.assertFalse(daemon.socket_path.exists())

    def test_the_socket_answers_while_the_model_loads(self):
        daemon = uma.Daemon()
        try:
            daemon.start()
            uma.until(daemon.socket_path.exists, "the socket file")
            # Connecting, asking for the state and sending a request all work at once; the request waits for the model.
            client = uma.until(lambda: self.connect(daemon), "a connection")
            self.assertIn(client.models()[0]["state"], ("unloaded", "loading", "ready"))
            self.assertEqual("eos", client.generate("one", max_tokens=1).last["event"])
            client.close()
        finally:
            daemon.kill()

    @staticmethod
    def connect(daemon):
        try:
            return daemon.client()
        except OSError:
            return None


class Signals(unittest.TestCase):
    def test_term_and_int_end_an_idle_daemon(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with uma.Daemon() as daemon:
                daemon.signal(number)
                self.assertEqual(0, daemon.wait())

    def test_drain_lets_the_running_stream_finish_and_refuses_new_work(self):
        with uma.Daemon(uma.TINY, "--kv-cells", "4096", "--slots", "1", config="kv: {layout: split}") as daemon, daemon.client() as client:
            running = client.start(type="generate", prompt="one", max_tokens=2000, ignore_eos=True)
            client.wait_token(running)
            daemon.signal(signal.SIGTERM)
            refused = None
            while refused is None:  # until the signal has arrived, new requests may still be accepted
                reply = client.finish(client.start(type="generate", prompt="two", max_tokens=1, deadline_ms=100))
                if reply.last["event"] == "error" and "deadline" not in reply.message:
                    refused = reply
                if client.replies[running].events[-1]["event"] == "eos":
                    break
            reply = client.finish(running)
            self.assertEqual(("length", 2000), (reply.reason, reply.usage["completion_tokens"]))
            self.assertEqual(0, daemon.wait())
            if refused is not None:
                self.assertIn(refused.code, ("E_LIMIT_003", "E_MODEL_001"))

    def test_a_second_signal_ends_at_once(self):
        with uma.Daemon(uma.TINY, "--kv-cells", "4096", "--slots", "1", "--max-tokens", "4000") as daemon, daemon.client() as client:
            # They run one after the other and take much longer than the time between the two signals.
            running = [client.start(type="generate", prompt="one", max_tokens=4000, ignore_eos=True, deadline_ms=0) for _ in range(100)]
            client.wait_token(running[0])
            daemon.signal(signal.SIGTERM)
            uma.until(lambda: "finishing" in daemon.log() or not daemon.is_running(), "the drain is logged")
            daemon.signal(signal.SIGTERM)
            with contextlib.suppress(uma.ConnectionClosed):  # the answer may be an error, or the connection may be closed
                self.assertNotEqual("length", client.finish(running[-1]).last.get("reason"))
            self.assertEqual(0, daemon.wait())
            self.assertIn("second signal: cancelling requests in flight", daemon.log())

    def test_the_time_to_finish_has_a_limit(self):
        with uma.Daemon(uma.TINY, "--kv-cells", "4096", "--slots", "1", "--drain-limit", "50ms") as daemon, daemon.client() as client:
            # They run one after the other and take much longer than the limit.
            running = [client.start(type="generate", prompt="one", max_tokens=4000, ignore_eos=True, deadline_ms=0) for _ in range(100)]
            client.wait_token(running[0])
            daemon.signal(signal.SIGTERM)
            self.assertEqual(0, daemon.wait())
            self.assertIn("time limit reached: cancelling requests in flight", daemon.log())

    def test_hup_and_pipe_do_not_end_the_daemon(self):
        with uma.Daemon() as daemon, daemon.client() as client:
            daemon.signal(signal.SIGHUP)
            daemon.signal(signal.SIGPIPE)
            uma.until(lambda: "HUP" in daemon.log(), "the signal is logged")
            self.assertEqual("pong", client.call(type="ping")["event"])

    def test_usr1_writes_the_metrics(self):
        with uma.Daemon() as daemon, daemon.client() as client:
            client.generate("one", max_tokens=5, ignore_eos=True)
            path = daemon.data_dir / "metrics.json"
            daemon.signal(signal.SIGUSR1)
            uma.until(path.exists, "metrics.json")
            metrics = json.loads(path.read_text())
            self.assertEqual(5, metrics["tokens_total"])
            self.assertEqual(set(client.metrics()), set(metrics))
            self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode))
            self.assertEqual([], [name for name in os.listdir(daemon.data_dir) if "tmp" in name])

    def test_a_trace_shows_what_a_reply_took(self):
        with uma.Daemon(config="scheduler: {speculation: off}\n") as daemon, daemon.client() as client:
            client.generate("one", max_tokens=5, ignore_eos=True)
            printed = subprocess.run([str(uma.BUILD / "bin" / "uma-cli"), "trace", "--seconds", "60", "--socket", str(daemon.socket_path)], capture_output=True,
                                     text=True, timeout=uma.WAIT_S, check=True).stdout
            events = json.loads(printed)["traceEvents"]
            threads = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
            decodes = [event for event in events if event["name"] == "decode"]
            self.assertEqual([1] * 4, [event["args"]["sequences"] for event in decodes], "the first token comes from the prompt's call")
            self.assertEqual({"uma-lane-0"}, {threads[event["tid"]] for event in decodes})
            self.assertTrue(all(event["dur"] > 0 for event in decodes))
            stages = [event["name"] for event in events if event["ph"] == "b"]
            self.assertEqual(["prepare", "queue", "prompt", "reply"], stages)
            ends = [event["ts"] for event in events if event["ph"] == "e"]
            self.assertEqual(sorted(ends), ends, "each stage ends before the next one does")
            self.assertEqual("E_PROTO_003", client.call(type="trace", seconds=0)["code"])

    def test_usr1_with_a_vanished_folder_is_logged_and_survived(self):
        with uma.Daemon() as daemon, daemon.client() as client:
            def is_gone():
                shutil.rmtree(daemon.data_dir, ignore_errors=True)  # The daemon may write a file meanwhile.
                return not daemon.data_dir.exists()
            uma.until(is_gone, "the folder is gone")
            daemon.signal(signal.SIGUSR1)
            uma.until(lambda: "metrics.json" in daemon.log(), "the failure is logged")
            self.assertEqual("pong", client.call(type="ping")["event"])


class Numbers(uma.DaemonTest):
    def test_metrics_have_the_fields_of_the_contract(self):
        self.client.generate("one", max_tokens=20, ignore_eos=True)
        metrics = self.client.metrics()
        for name in ("sessions", "tokens_total", "avg_batch", "p50_ms", "p95_ms", "p99_ms", "decode_ms_avg", "sample_ms_avg",
                     "batch_calls_total", "sequences_active", "queue_depth", "per_token_latency_ms", "bmt_mb_per_token",
                     "copy_free_ratio", "device_busy_ratio"):
            self.assertIn(name, metrics)
            self.assertIsInstance(metrics[name], (int, float, type(None)), name)
        self.assertEqual("tiny", metrics["model"])
        self.assertGreaterEqual(metrics["tokens_total"], 20)
        self.assertGreaterEqual(metrics["batch_calls_total"], 20)
        self.assertGreater(metrics["decode_ms_avg"], 0)
        self.assertLessEqual(metrics["p50_ms"], metrics["p95_ms"])
        self.assertLessEqual(metrics["p95_ms"], metrics["p99_ms"])
        self.assertGreaterEqual(metrics["avg_batch"], 1)

    def test_counters_count(self):
        before = self.client.metrics()
        self.client.generate("one", max_tokens=7, ignore_eos=True)
        session = self.client.create_session()
        after = self.client.metrics()
        self.assertEqual(7, after["tokens_total"] - before["tokens_total"])
        self.assertEqual(1, after["sessions"] - before["sessions"])
        self.client.call(type="end_session", session_id=session)

    def test_models(self):
        model = self.client.models()[0]  # the default model comes first
        self.assertEqual(("tiny", "ready", 1536, 8, 1), tuple(model[name] for name in ("name", "state", "vocabulary", "slots", "workers")))
        self.assertGreater(model["parameters"], 100_000)
        self.assertGreater(model["bytes"], 100_000)
        self.assertGreater(model["context_tokens"], 0)
        self.assertGreater(model["sequence_tokens_max"], 0)
        self.assertLessEqual(model["sequence_tokens_max"], model["context_tokens"])
        self.assertFalse(model["has_chat_template"])
        self.assertIn(model["kv_layout"], ("split", "unified"))


class WeightsOnce(unittest.TestCase):
    def test_a_further_worker_costs_a_context_and_no_weights(self):
        with tempfile.TemporaryDirectory(prefix="uma-e2e-") as folder:
            model = pathlib.Path(folder) / "wide.gguf"
            # The weights have about 90 MB, a context a third of that: parts of its compute buffers lie in huge pages.
            subprocess.run([uma.MAKE_MODEL, "--layers", "16", "--width", "512", "--heads", "8", "--kv-heads", "1", "--ff", "1536",
                            "--vocab", "4096", "--type", "f16", "--out", model], check=True)
            weights = model.stat().st_size
            pss = []
            for workers in (1, 2, 3):
                with uma.Daemon(model, "--kv-cells", "1024", "--slots", "2", "--workers", workers) as daemon:
                    with daemon.client() as client:
                        def stream(daemon=daemon):
                            with daemon.client() as own:
                                return own.generate("a" + " b" * 50, max_tokens=20, ignore_eos=True).last["event"]
                        self.assertEqual(["eos"] * 6, uma.parallel(*[stream] * 6))
                        self.assertEqual(workers, client.models()[0]["workers"])
                    pss.append(daemon.pss_bytes())
            second, third = pss[1] - pss[0], pss[2] - pss[1]
            print(f"\n  weights {weights / 2**20:.1f} MiB; Pss of 1, 2, 3 workers: "
                  f"{', '.join(f'{value / 2**20:.1f}' for value in pss)} MiB", end=" ")
            self.assertLess(second, weights / 2)
            self.assertLess(third, weights / 2)


if __name__ == "__main__":
    unittest.main()
