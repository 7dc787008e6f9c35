"""umad check: what it says of installations in which all is well, and of those in which something is wrong."""

import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import postgres
import redis
import test_cluster
import uma


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-check-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.flags = ("--model", uma.TINY, "--data-dir", self.folder / "data", "--socket", self.folder / "s", "--http", "off")

    def check(self, *flags, environment=None, as_json=False, before=()):
        """`flags`: pairs of a flag and its value, in place of those of the test."""
        given = [*self.flags, *flags]
        pairs = dict(zip(given[::2], given[1::2], strict=True))
        done = uma.run_umad("check", *sum(pairs.items(), ()), *(["--json"] if as_json else []), environment=environment, before=before)
        self.assertIn(done.returncode, (0, 1), done)
        return done

    def well(self, *flags, **options):
        done = self.check(*flags, **options)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("all is well", done.stdout)
        return done.stdout

    def problems(self, *flags, **options):
        """The texts of the problems, of which there is at least one."""
        done = self.check(*flags, as_json=True, **options)
        report = json.loads(done.stdout)
        found = [finding["text"] for finding in report["findings"] if finding["level"] == "problem"]
        self.assertEqual((1, False), (done.returncode, report["ok"]), report)
        self.assertNotEqual([], found)
        return "\n".join(found)


class Machine(Check):
    """Without a database."""

    def test_before_the_first_start_all_is_well_and_nothing_is_made(self):
        text = self.well()
        self.assertIn("umad makes it when it starts", text)
        self.assertIn("the default one is tiny", text)
        self.assertEqual([], list(self.folder.iterdir()))

    def test_beside_a_running_daemon_all_is_well(self):
        with uma.Daemon(uma.TINY) as daemon:
            done = uma.run_umad("check", "--model", uma.TINY, "--data-dir", daemon.data_dir, "--socket", daemon.socket_path, "--http", "off")
            self.assertEqual(0, done.returncode, done.stdout)
            self.assertIn("a umad uses it now", done.stdout)
            with daemon.client() as client:
                self.assertNotEqual("", client.generate("one", max_tokens=2).text)

    def test_every_mistake_in_the_settings_is_a_problem(self):
        config = self.folder / "umad.yaml"
        config.write_text("slots: many\nnonsense: 1\n")
        found = self.problems("--config", config)
        self.assertIn("slots", found)
        self.assertIn('unknown key "nonsense"', found)

    def test_a_model_that_is_missing(self):
        self.flags = (*self.flags[2:], "--model", "/nowhere.gguf")
        self.assertIn("/nowhere.gguf", self.problems())

    def test_a_data_folder_that_is_a_file(self):
        (self.folder / "data").write_text("")
        self.assertIn("is not a folder", self.problems())

    def test_an_address_that_another_program_has(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.assertIn("http", self.problems("--http", f"127.0.0.1:{taken.getsockname()[1]}"))

    def test_keys_that_cannot_be_read(self):
        keys = self.folder / "keys"
        keys.write_text("no key at all\n")
        self.assertIn(str(keys), self.problems("--http-keys", keys))
        line = subprocess.run([uma.UMAD, "key", "new", "ann"], capture_output=True, text=True, check=True,
                              timeout=uma.WAIT_S).stdout.splitlines()[1].removeprefix("line  ")
        keys.write_text(line + "\n")
        keys.chmod(0o600)
        self.assertIn("has 1 keys", self.well("--http-keys", keys))
        keys.chmod(0o622)
        self.assertIn("other users may write", self.problems("--http-keys", keys))

    def test_keys_of_another_user(self):
        keys = self.folder / "keys"
        keys.write_text("")
        keys.chmod(0)
        before = uma.without_rights("dac_override", "dac_read_search")
        self.assertIn("Permission denied", self.problems("--http-keys", keys, before=before))

    def test_a_certificate_and_the_key_of_another(self):
        def make(name, days):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days),
                            "-subj", "/CN=localhost", "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.pem"],
                           check=True, capture_output=True, timeout=uma.WAIT_S)
        make("one", 90)
        make("other", 90)
        config = self.folder / "umad.yaml"
        config.write_text(f"http:\n  tls_certificate: {self.folder}/one.pem\n  tls_key: {self.folder}/one.key\n")
        self.assertRegex(self.well("--config", config), "it ends in (89|90) days")
        config.write_text(f"http:\n  tls_certificate: {self.folder}/one.pem\n  tls_key: {self.folder}/other.key\n")
        self.assertIn("TLS", self.problems("--config", config))


@postgres.needed
class WithDatabase(Check):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.database = cls.stack.enter_context(postgres.Postgres(fsync=True))

    def setUp(self):
        super().setUp()
        self.name = f"check{self.id().rsplit('.', 1)[1]}"[:63]
        self.assertIsNotNone(self.database.run_sql(f'CREATE DATABASE "{self.name}"', "postgres"))
        self.address = self.database.address(self.name)
        self.flags = (*self.flags, "--catalog", self.address, "--node", "a")


@postgres.needed
class SharedFolder(WithDatabase):
    def setUp(self):
        super().setUp()
        self.states = self.folder / "states"
        self.states.mkdir(mode=0o700)
        self.flags = (*self.flags, "--shared-states", self.states)

    def test_a_folder_that_can_be_used(self):
        self.assertRegex(self.well(), rf"the folder {self.states} can be written: 64 KiB in \d+\.\d ms")
        self.assertIn("a state that nobody uses ends after 1d", self.well())
        self.assertEqual([], list(self.states.iterdir()), "it leaves nothing")

    def test_a_folder_that_is_missing(self):
        self.states.rmdir()
        self.assertIn("No such file", self.problems())
        self.assertFalse(self.states.exists())

    def test_a_folder_that_others_may_write_to(self):
        self.states.chmod(0o777)
        self.assertIn("run chmod 700 on it", self.problems())

    def test_a_folder_that_is_read_only(self):
        self.states.chmod(0o500)
        self.assertIn("Permission denied", self.problems(before=uma.without_rights("dac_override")))


@postgres.needed
@redis.needed
class SharedRedis(WithDatabase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.store = cls.stack.enter_context(redis.Redis())

    def setUp(self):
        super().setUp()
        self.flags = (*self.flags, "--shared-states", self.store.address)
        self.addCleanup(self.set, maxmemory=0, requirepass="")
        self.addCleanup(self.set, **{"maxmemory-policy": "noeviction"})

    def set(self, **settings):
        for name, value in settings.items():
            self.store.ask("CONFIG", "SET", name, value)

    def test_a_server_that_can_be_used(self):
        self.set(maxmemory=100 << 30)
        text = self.well()
        self.assertRegex(text, r"redis://127\.0\.0\.1:\d+/0 \((Redis|Valkey) \S+\) stores 64 KiB in \d+\.\d ms")
        self.assertIn("maxmemory is 100", text)
        self.assertIn("its policy is noeviction", text)
        self.assertEqual([], self.store.ask("KEYS", "*"), "it leaves nothing")

    def test_a_server_with_another_policy_and_little_memory(self):
        self.set(maxmemory=64 << 20, **{"maxmemory-policy": "allkeys-lru"})
        text = self.well()
        self.assertIn("its policy is allkeys-lru, which may remove the list of all states", text)
        self.assertIn("less than kv.shared_bytes_max (64", text)

    def test_a_server_that_is_full(self):
        self.set(maxmemory=1)
        self.assertIn("OOM", self.problems())

    def test_a_password(self):
        self.assertIn("the server asks for no password", self.well())
        self.set(requirepass="right")
        try:
            self.assertIn("NOAUTH", self.problems())

            def environment(password):
                return uma.clean_environment(UMA_SHARED_STATES_PASSWORD=password)
            self.assertIn("WRONGPASS", self.problems(environment=environment("wrong")))
            text = self.well(environment=environment("right"))
            self.assertNotIn("asks for no password", text)
            self.assertNotIn("right", text)
        finally:
            with socket.create_connection(("127.0.0.1", self.store.port)) as connection:
                connection.sendall(b"AUTH right\r\nCONFIG SET requirepass \"\"\r\n")
                uma.until(lambda: self.is_open(), "the password is gone")

    def is_open(self):
        with contextlib.suppress(AssertionError):
            return self.store.ask("PING") == b"PONG"
        return False

    def test_a_server_that_is_away(self):
        with redis.Redis() as other:
            address = other.address
        self.assertIn("Connection refused", self.problems("--shared-states", address))


@postgres.needed
class Database(WithDatabase):
    def sql(self, sql):
        self.assertIsNotNone(self.database.run_sql(sql, self.name), sql)

    def node(self, name, *flags):
        return uma.Daemon(uma.TINY, *test_cluster.FLAGS, "--catalog", self.address, "--node", name, *flags)

    def test_before_the_first_start(self):
        text = self.well()
        self.assertIn("no tables yet", text)
        self.assertRegex(text, r"a commit takes \d+\.\d ms")
        self.assertIn("no daemon uses the database", text)
        self.assertEqual("", self.database.run_sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", self.name), "it makes nothing")

    def test_beside_another_member(self):
        with self.node("b"):
            text = self.well()
            self.assertRegex(text, r"node b lives: its lease ends in \d+ s")
            self.assertRegex(text, r"node b serves (\d+) of the \1 models here")

    def test_beside_its_own_daemon(self):
        with self.node("a") as daemon:
            self.flags = (*self.flags, "--data-dir", daemon.data_dir)
            self.assertIn("node a lives", self.well())

    def test_after_its_own_daemon_was_killed(self):
        with self.node("a") as daemon:
            daemon.process.kill()
            daemon.wait()
            self.assertIn("the last run of this node was killed", self.well("--data-dir", daemon.data_dir))
            self.assertIn("lives elsewhere", self.problems())

    def test_members_that_share_states_elsewhere(self):
        states = self.folder / "states"
        states.mkdir(mode=0o700)
        shared = ("--shared-states", states)
        with self.node("b", *shared):
            self.assertIn(f"node b shares states by the folder {states}, too", self.well(*shared))
            self.assertIn(f"node b shares states by the folder {states}, and this one by nothing", self.well())

    def test_two_nodes_of_one_name(self):
        with self.node("a"):
            self.assertIn("a daemon with the name of this node, a, lives elsewhere", self.problems())
            with self.node("a"):
                self.assertIn("2 living daemons have the name a", self.problems())

    def test_another_model_of_the_same_name(self):
        other = self.folder / "models"
        other.mkdir()
        shutil.copy(uma.TINY_CHAT, other / "tiny.gguf")
        with self.node("b"):
            self.flags = ("--model", other / "tiny.gguf", *self.flags[2:])
            self.assertRegex(self.problems(), r"model tiny has \d+ bytes here and \d+ there \(node b\)")

    def test_a_database_that_is_missing(self):
        found = self.problems("--catalog", self.database.address("nothing"))
        self.assertIn('database "nothing" does not exist', found)

    def test_a_server_that_does_not_answer(self):
        self.assertIn("No such file", self.problems("--catalog", "postgresql://uma@/uma?host=/nowhere"))

    def test_a_user_that_does_not_exist(self):
        address = self.address.replace("postgres@", "nobody@")
        self.assertIn('role "nobody" does not exist', self.problems("--catalog", address))

    def test_tables_of_a_later_version(self):
        with self.node("b"):
            pass
        self.assertIn("have the versions of this umad", self.well())
        self.sql("UPDATE uma_schema SET version = version + 1 WHERE part = 'shared'")
        self.assertIn("install the umad that made them", self.problems())

    def test_tables_of_an_earlier_version(self):
        with self.node("b"):
            pass
        self.sql("UPDATE uma_schema SET version = 2 WHERE part = 'shared'; ALTER TABLE daemons DROP COLUMN version, DROP COLUMN models, "
                 "DROP COLUMN incarnation, DROP COLUMN shared_states; DROP TABLE session_images, image_pieces, images")
        self.assertIn("migrates them", self.well())
        with self.node("b"):
            self.assertIn("have the versions of this umad", self.well())

    def test_a_user_who_may_not_write(self):
        with self.node("b"):
            pass
        self.sql("CREATE USER reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        self.assertIn("user reader may not change the tables", self.problems("--catalog", self.address.replace("postgres@", "reader@")))

    def test_a_wrong_password(self):
        # Each connection of this user needs a password; the other ones are trusted.
        self.sql("CREATE USER ann PASSWORD 'right'")
        rules = self.database.folder / "data" / "pg_hba.conf"
        kept = rules.read_text()
        self.addCleanup(self.sql, "SELECT pg_reload_conf()")
        self.addCleanup(rules.write_text, kept)
        rules.write_text(f"local all ann scram-sha-256\n{kept}")
        self.sql("SELECT pg_reload_conf()")
        address = self.address.replace("postgres@", "ann@")

        def asked(password):
            return uma.clean_environment(PGPASSWORD=password)
        uma.until(lambda: "password authentication failed" in self.check("--catalog", address, environment=asked("wrong")).stdout,
                  "the server asks for the password")
        self.sql("GRANT CREATE ON SCHEMA public TO ann")
        self.assertNotIn("right", self.well("--catalog", address, environment=asked("right")))

    def test_connections_that_are_used_up(self):
        self.sql(f'ALTER DATABASE "{self.name}" CONNECTION LIMIT 1; CREATE USER bob; GRANT CREATE ON SCHEMA public TO bob')
        self.assertIn("it takes no further connection", self.problems("--catalog", self.address.replace("postgres@", "bob@")))


if __name__ == "__main__":
    unittest.main()
