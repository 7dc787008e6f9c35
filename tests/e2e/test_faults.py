"""Disks that are full or read-only, as a client notices them: small file systems in memory, mounted for the daemon only."""

import contextlib
import json
import pathlib
import subprocess
import unittest

import uma

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
FLAGS = ("--kv-cells", "2048", "--slots", "2")
PROMPT = "Once upon a time there was a little girl who lived in a house near the woods. " * 12


class PrivateMounts:
    """A separate mount namespace, held by a process until close(). Raises unittest.SkipTest if the system does not permit
    it."""

    def __init__(self):
        problems = []
        for flags, enter in (((), ()), (("--user", "--map-root-user"), ("--user", "--preserve-credentials"))):
            self.holder = subprocess.Popen(["unshare", "--mount", *flags, "--", "sh", "-c", "echo ready; exec cat"], text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            # Uses the holder's root, which differs from the namespace's root if the tests run in a changed root.
            self.enter = ["nsenter", "--target", str(self.holder.pid), "--mount", "--root", *enter, "--"]
            if self.holder.stdout.readline() == "ready\n":
                probe = self.run("mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt")
                if probe.returncode == 0:
                    self.run("umount", "/mnt")
                    return
                problems.append(probe.stderr.strip())
            else:
                problems.append(self.holder.stderr.read().strip())
            self.close()
        raise unittest.SkipTest(f"mounts of our own are not permitted here: {'; '.join(problems)}")

    def run(self, *command):
        return subprocess.run([*self.enter, *map(str, command)], capture_output=True, text=True, timeout=uma.WAIT_S, check=False)

    def close(self):
        with contextlib.suppress(OSError):
            self.holder.stdin.close()
        self.holder.wait(uma.WAIT_S)
        self.holder.stdout.close()
        self.holder.stderr.close()


class DiskTest(unittest.TestCase):
    config = "kv: {layout: split, cold_bytes_max: 1M}\n"

    def setUp(self):
        self.mounts = PrivateMounts()
        self.addCleanup(self.mounts.close)
        self.daemon = uma.Daemon(uma.TINY, *FLAGS, config=self.config)
        self.addCleanup(self.daemon.kill)
        self.daemon.arguments = self.mounts.enter + self.daemon.arguments

    def mount(self, folder, options):
        folder.mkdir(mode=0o700, exist_ok=True)
        done = self.mounts.run("mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", folder)
        self.assertEqual(0, done.returncode, done.stderr)

    def seen(self, path):
        """The daemon's file under a path that this process can open."""
        return pathlib.Path(f"/proc/{self.mounts.holder.pid}/root{path}")

    def fill(self, folder):
        """Writes until the file system has no byte left."""
        with open(self.seen(folder / "filler"), "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def restart(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.daemon.start().wait_ready()

    def begin(self, client, prompt=PROMPT, **fields):
        session = client.create_session(mode="text", **fields)
        reply = client.generate(prompt, session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        return session


class DataFolder(DiskTest):
    def shown(self, client, session):
        detail = client.session(session)
        return {name: detail[name] for name in ("tokens", "pending_tokens", "turns", "text", "name")}

    def assert_refused(self, answer):
        self.assertEqual(("error", "E_IO_001"), (answer["event"], answer["code"]), json.dumps(answer))
        self.assertIn("catalog.db", answer["message"])

    def test_a_full_data_folder_refuses_changes_and_loses_nothing(self):
        self.mount(self.daemon.data_dir, "size=4m")
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            kept = self.begin(client, name="kept")
            other = self.begin(client, f"other {PROMPT}")
            before = [self.shown(client, session) for session in (kept, other)]
            self.fill(self.daemon.data_dir)
            self.assert_refused(client.append(kept, " and" * 200))
            self.assert_refused(client.call(type="create_session", name="new"))
            self.assert_refused(client.call(type="fork_session", session_id=kept))
            self.assert_refused(client.call(type="rewind_session", session_id=kept, turn=0))
            self.assert_refused(client.call(type="end_session", session_id=kept))
            self.assert_refused(client.call(type="end_session", session_id="kept"))
            refused = client.generate(" and", session_id=other, **OPTIONS)
            self.assert_refused(refused.last)
            self.assertEqual(before, [self.shown(client, session) for session in (kept, other)])
            self.assertEqual("eos", client.generate("what keeps nothing", **OPTIONS).last["event"])
            self.assertRegex(self.daemon.log(), r"error.*catalog\.db.*(full|space)")
        # Even the end of the daemon needs no space.
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(before, [self.shown(client, session) for session in (kept, other)])
            self.assert_refused(client.call(type="end_session", session_id=kept))
            self.seen(self.daemon.data_dir / "filler").unlink()
            self.assertEqual("ack", client.append("kept", " and then")["event"])
            self.assertEqual("eos", client.generate_stream("kept", **OPTIONS).last["event"])
            self.assertEqual("ack", client.call(type="end_session", session_id=other)["event"])
            after = self.shown(client, "kept")
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(after, self.shown(client, "kept"))
            self.assertEqual("E_SESSION_001", client.session(other)["code"])
            self.assertEqual("cold", client.session("kept")["tier"])

    def test_a_read_only_data_folder_is_refused_at_the_start(self):
        self.mount(self.daemon.data_dir, "ro,size=256k")
        self.daemon.start()
        self.assertEqual(1, self.daemon.wait())
        self.assertRegex(self.daemon.log(), rf"{self.daemon.data_dir}.*Read-only file system")


class Files(DiskTest):
    """Little memory for states, so that some go to the disk at once; their folder is a separate file system."""

    config = "kv: {layout: split, warm_bytes_max: 150K}\n"

    def check_states_without_room(self, why):
        """If states cannot be written, the replies are the same."""
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            sessions = [self.begin(client, f"{number} {PROMPT}") for number in range(5)]
            uma.until(lambda: client.metrics()["states_failed_total"] >= 1, "a write that failed")
            self.assertRegex(self.daemon.log(), rf"warning.*could not be stored.*{why}")
            for session in sessions:
                reply = client.generate(" And then", session_id=session, **OPTIONS)
                self.assertEqual("length", reply.reason, reply.last)
                self.assertEqual(2, client.session(session)["turns"])
            self.assertEqual(0, client.metrics()["cold_sessions"])
        return sessions

    def test_states_have_no_room_on_a_full_disk(self):
        folder = self.daemon.data_dir / "kv"
        self.daemon.data_dir.mkdir(mode=0o700)
        self.mount(folder, "size=256k")
        self.fill(folder)
        sessions = self.check_states_without_room("No space left")
        self.seen(folder / "filler").unlink()
        self.restart()
        with self.daemon.client() as client:
            self.assertTrue(any(client.session(session)["tier"] == "cold" for session in sessions), "the end writes what it can")
            for session in sessions:
                self.assertEqual("length", client.generate(" And then", session_id=session, **OPTIONS).reason)

    def test_states_stay_in_memory_where_their_folder_is_read_only(self):
        self.daemon.data_dir.mkdir(mode=0o700)
        self.mount(self.daemon.data_dir / "kv", "ro,size=256k")
        self.check_states_without_room("Read-only file system")
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())


if __name__ == "__main__":
    unittest.main()
