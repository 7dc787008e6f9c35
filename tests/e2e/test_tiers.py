"""The KV of sessions whose slot is needed by others, or whose daemon ends: in memory, in files, and in damaged files."""

import os
import pathlib
import shutil
import time
import unittest

import uma

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
FLAGS = ("--kv-cells", "2048", "--slots", "2")
PROMPT = "Once upon a time there was a little girl who lived in a house near the woods. " * 12


class TiersTest(unittest.TestCase):
    config = None

    def setUp(self):
        self.daemon = uma.Daemon(uma.TINY_REGISTER, *FLAGS, config=self.config)
        self.addCleanup(self.daemon.kill)
        self.daemon.start().wait_ready()

    @property
    def files(self):
        return sorted((self.daemon.data_dir / "kv").glob("*.kv"))

    def restart(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.daemon.start().wait_ready()

    def begin(self, client, prompt=PROMPT):
        """Makes a session with one turn."""
        session = client.create_session(mode="text")
        reply = client.generate(prompt, session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        return session

    def go_on(self, client, session):
        reply = client.generate(" And then", session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        self.assertEqual(reply.usage["prompt_tokens"], reply.usage["reused_tokens"] + reply.usage["recomputed_tokens"])
        return reply

    def expected(self):
        """The tokens of the second reply in a session that was never disturbed."""
        with self.daemon.client() as client:
            session = self.begin(client)
            reply = self.go_on(client, session)
            client.call(type="end_session", session_id=session)
            return [token["token_id"] for token in reply.tokens]

    def assert_says(self, tokens, reply):
        self.assertEqual(tokens, [token["token_id"] for token in reply.tokens])


class Files:
    """Tests of states on disk, for the classes below, which have different amounts of memory for states."""

    def test_files_are_ours_alone(self):
        with self.daemon.client() as client:
            self.begin(client)
        self.restart()
        self.assertEqual(0o700, (self.daemon.data_dir / "kv").stat().st_mode & 0o777)
        for path in self.files:
            self.assertEqual(0o600, path.stat().st_mode & 0o777)
            self.assertRegex(path.name, r"^[0-9a-f]{32}\.kv$")
        for path in (self.daemon.data_dir / "kv").glob("*.part"):
            self.assertEqual(0o600, path.stat().st_mode & 0o777)

    def damage(self, change):
        """Changes the file of a session while the daemon is down; returns an undisturbed session's tokens and the next reply."""
        tokens = self.expected()
        with self.daemon.client() as client:
            session = self.begin(client)
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        (path,) = self.files
        change(path)
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            return tokens, self.go_on(client, session)

    def assert_computed_again(self, change, why):
        tokens, reply = self.damage(change)
        self.assertEqual("none", reply.usage["tier"], reply.usage)
        self.assertEqual(0, reply.usage["reused_tokens"])
        self.assert_says(tokens, reply)
        self.assertRegex(self.daemon.log(), why)

    def test_a_flipped_bit_is_seen(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        self.assert_computed_again(flip, r"warning.*damaged")

    def test_a_truncated_file_is_seen(self):
        self.assert_computed_again(lambda path: os.truncate(path, path.stat().st_size // 2), r"warning.*truncated")

    def test_an_empty_file_is_seen(self):
        self.assert_computed_again(lambda path: os.truncate(path, 0), r"warning")

    def test_a_missing_file_is_no_loss(self):
        tokens, reply = self.damage(lambda path: path.unlink())
        self.assertEqual(("none", "not_cached"), (reply.usage["tier"], reply.usage["reuse_reason"]))
        self.assert_says(tokens, reply)

    def test_a_file_that_vanishes_while_the_daemon_runs_is_no_loss(self):
        with self.daemon.client() as client:
            session = self.begin(client)
        self.restart()
        for path in self.files:
            path.unlink()
        with self.daemon.client() as client:
            reply = self.go_on(client, session)
            self.assertEqual(("none", "refused"), (reply.usage["tier"], reply.usage["reuse_reason"]))
            self.assertRegex(self.daemon.log(), r"warning.*kv")

    def test_a_folder_in_a_files_place_is_no_loss(self):
        def replace(path):
            path.unlink()
            path.mkdir()
        tokens, reply = self.damage(replace)
        self.assertEqual("none", reply.usage["tier"])
        self.assert_says(tokens, reply)

    def test_states_of_other_settings_are_kept_and_not_used(self):
        with self.daemon.client() as client:
            session = self.begin(client)
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        config = self.daemon.folder / "umad.yaml"
        settings = config.read_text()
        config.write_text(settings.replace("}", ", type: q8_0}"))
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assertEqual("none", client.session(session)["tier"])
        self.assertEqual(1, len(self.files))
        self.assertRegex(self.daemon.log(), r"1 stored states of this model are for other settings")
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        config.write_text(settings)
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assertEqual("cold", self.go_on(client, session).usage["tier"])

    def test_what_nobody_used_for_its_time_to_live_is_removed_and_its_session_stays(self):
        with self.daemon.client() as client:
            session = self.begin(client)
            before = client.session(session)
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        config = self.daemon.folder / "umad.yaml"
        config.write_text(config.read_text().replace("}", ", ttl: 2h}"))
        (path,) = self.files
        for used_hours_ago, tier, count in ((1, "cold", 1), (3, "none", 0)):
            used_s = time.time() - used_hours_ago * 3600
            os.utime(path, (used_s, used_s))
            self.daemon.start().wait_ready()
            uma.until(lambda wanted=count: len(self.files) == wanted, f"{count} files after {used_hours_ago} h")
            with self.daemon.client() as client:
                after = client.session(session)
                self.assertEqual(1 - count, client.metrics()["states_expired_total"])
                self.assertEqual((tier, before["tokens"], before["text"]), (after["tier"], after["tokens"], after["text"]))
            if count == 1:
                self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        with self.daemon.client() as client:
            self.assertEqual("not_cached", self.go_on(client, session).usage["reuse_reason"])

    def kill(self):
        self.daemon.process.kill()
        self.daemon.wait()
        self.daemon.start().wait_ready()

    def test_after_a_kill_what_was_written_in_time_is_read(self):
        tokens = self.expected()
        with self.daemon.client() as client:
            session = self.begin(client)
            alone = client.generate(f"without a session {PROMPT}", **OPTIONS)
            uma.until(lambda: len(self.files) == 2, "both states on disk")
        self.kill()
        with self.daemon.client() as client:
            reply = self.go_on(client, session)
            self.assertEqual(("cold", "cold"), (reply.usage["tier"], reply.usage["reuse_reason"]))
            self.assertLess(reply.usage["recomputed_tokens"], 8)
            self.assert_says(tokens, reply)
            again = client.generate(f"without a session {PROMPT}{alone.text}", **OPTIONS)
            self.assertEqual(("cold", "prefix"), (again.usage["tier"], again.usage["reuse_reason"]))
            self.assertLess(again.usage["recomputed_tokens"], 8)

    def test_after_a_kill_what_was_not_saved_is_computed_again(self):
        tokens = self.expected()
        with self.daemon.client() as client:
            session = self.begin(client)
        self.kill()
        with self.daemon.client() as client:
            reply = self.go_on(client, session)
            self.assertEqual(("none", "not_cached"), (reply.usage["tier"], reply.usage["reuse_reason"]))
            self.assert_says(tokens, reply)


class Memory:
    """Tests of states in memory."""

    def test_memory_and_disk_and_back(self):
        tokens = self.expected()
        with self.daemon.client() as client:
            sessions = [self.begin(client, f"{number} {PROMPT}") for number in range(4)]
            tiers = [client.session(session)["tier"] for session in sessions]
            self.assertEqual(["warm", "warm", "hot", "hot"], tiers)
            again = self.begin(client)
            for session in sessions:
                self.go_on(client, session)
            reply = self.go_on(client, again)
            self.assertEqual(("warm", "warm"), (reply.usage["tier"], reply.usage["reuse_reason"]))
            self.assertGreater(reply.usage["restore_ms"], 0)
            self.assert_says(tokens, reply)
        self.restart()
        self.assertEqual(5, len(self.files))
        with self.daemon.client() as client:
            self.assertEqual("cold", client.session(sessions[0])["tier"])
            for session in [*sessions, again]:
                self.assertEqual(("cold", "cold"), (lambda usage: (usage["tier"], usage["reuse_reason"]))(
                    self.go_on(client, session).usage))
            metrics = client.metrics()
            self.assertEqual(5, metrics["cold_hits_total"])
            for session in [*sessions, again]:
                client.call(type="end_session", session_id=session)
            uma.until(lambda: not self.files, "files of sessions that ended gone")

    def test_without_a_folder_for_files_states_stay_in_memory(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        folder = self.daemon.data_dir / "kv"
        shutil.rmtree(folder)
        folder.write_text("not a folder")
        self.daemon.start().wait_ready()
        self.assertRegex(self.daemon.log(), r"warning.*states are kept in memory only")
        with self.daemon.client() as client:
            sessions = [self.begin(client, f"{number} {PROMPT}") for number in range(3)]
            self.assertEqual("warm", self.go_on(client, sessions[0]).usage["tier"])
        folder.unlink()
        folder.mkdir(mode=0o700)


class Tiers(Files, Memory, TiersTest):
    config = "kv: {layout: split}\n"


class UnifiedTiers(Files, Memory, TiersTest):
    config = "kv: {layout: unified}\n"


class SmallMemory(Files, TiersTest):
    """So little memory that states go to disk at once."""

    config = "kv: {layout: split, warm_bytes_max: 50K}\n"

    def test_memory_and_disk_and_back(self):
        with self.daemon.client() as client:
            sessions = [self.begin(client, f"{number} {PROMPT}") for number in range(2)]

            def on_disk():
                return [session for session in sessions if client.session(session)["tier"] == "cold"]
            for number in range(2):
                sessions.append(self.begin(client, f"later {number} {PROMPT}"))
                uma.until(lambda wanted=number + 1: len(on_disk()) == wanted, "a session on disk")
            self.assertEqual(2, len(self.files))
            self.assertEqual("cold", self.go_on(client, on_disk()[0]).usage["tier"])


class Sharing(uma.DaemonTest):
    flags = FLAGS

    def test_a_client_that_sends_its_whole_history(self):
        history = f"whole history {PROMPT}"
        first = self.client.generate(history, **OPTIONS)
        self.assertEqual(0, first.usage["reused_tokens"])
        second = self.client.generate(history + "And more was said", **OPTIONS)
        self.assertEqual(("hot", "prefix"), (second.usage["tier"], second.usage["reuse_reason"]))
        self.assertGreater(second.usage["reused_tokens"], first.usage["prompt_tokens"] - 8)

    def test_a_fork_begins_with_its_parents_state(self):
        parent = self.client.create_session(mode="text")
        self.client.generate(f"a parent {PROMPT}", session_id=parent, **OPTIONS)
        child = self.client.call(type="fork_session", session_id=parent)["session_id"]
        reply = self.client.generate(" and", session_id=child, **OPTIONS)
        self.assertEqual("hot", reply.usage["tier"])
        self.assertLess(reply.usage["recomputed_tokens"], 10)

    def test_an_ephemeral_session_leaves_no_state(self):
        session = self.client.create_session(mode="text", ephemeral=True)
        self.client.generate(f"ephemeral {PROMPT}", session_id=session, **OPTIONS)
        self.assertEqual("hot", self.client.session(session)["tier"])
        for number in range(3):
            other = self.client.create_session(mode="text")
            self.client.generate(f"{number} {PROMPT}", session_id=other, **OPTIONS)
        self.assertEqual("none", self.client.session(session)["tier"])


if __name__ == "__main__":
    unittest.main()
