"""Faults for faults.py: nodes are killed in the middle of turns, and nodes, connections and the database are troubled beside that."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time

import uma
from relay import Mode

LEASE_S = 15


class Nemesis:
    """Kills nodes in the middle of turns, and troubles nodes, connections and the database beside that."""

    """`between_kills_s`: the shortest and the longest time between two kills. `down_s`: how long a killed node stays away; others may be
    killed meanwhile, but one always runs."""

    def __init__(self, cluster, seed, kills, deadline, troubles, between_kills_s=(1, 6), down_s=0):
        self.cluster = cluster
        self.kills = kills
        self.deadline = deadline
        self.troubles = troubles
        self.between_kills_s = between_kills_s
        self.down_s = down_s
        self.random = random.Random(f"{seed}/nemesis")
        self.trouble_random = random.Random(f"{seed}/troubles")
        self.kills_done = 0

    def is_over(self):
        return self.cluster.has_failed.is_set() or self.cluster.is_over.is_set()

    def wait(self, seconds):
        self.cluster.is_over.wait(min(seconds, max(0.0, self.deadline - time.monotonic())))

    def kill_nodes(self):
        starting = []
        while self.kills_done < self.kills and time.monotonic() < self.deadline and not self.is_over():
            self.wait(self.random.uniform(*self.between_kills_s))
            there = [node for node in self.cluster.nodes if not node.is_away]
            if len(there) < 2 and self.down_s:
                continue
            node = self.random.choice(there)
            end = time.monotonic() + 5
            while node.turns == 0 and time.monotonic() < end and not self.is_over():
                time.sleep(0.001)
            self.wait(self.random.uniform(0, 0.02))  # Anywhere in a turn, its commit included.
            with node.process_lock:
                in_turn = node.turns > 0
                node.check_running()
                self.cluster.note_kill(node)
                node.kill_process()
                self.cluster.count("kills in the middle of a turn" if in_turn else "kills between turns")
                self.kills_done += in_turn
                node.is_away = True
            starting.append(threading.Thread(target=self.bring_back, args=(node,)))
            starting[-1].start()
            if not self.down_s:
                starting[-1].join()
        for thread in starting:
            thread.join()

    def bring_back(self, node):
        self.wait(self.down_s)
        with node.process_lock:
            node.start(self.cluster.has_failed.is_set)
        node.is_away = False

    def trouble(self):
        """One trouble after another, each of which heals."""
        order = []
        while not self.is_over():
            order = order or self.trouble_random.sample(self.troubles, len(self.troubles))
            name = order.pop()
            try:
                getattr(self, name)()
            except BaseException as problem:  # noqa: B902 - reported by the main thread
                return self.cluster.fail(f"{name}: {problem!r}")
            self.cluster.count(name.replace("_", " "))
            self.wait(self.trouble_random.uniform(0.5, 3))
        return None

    def run(self):
        threads = [threading.Thread(target=self.trouble)] if self.troubles else []
        for thread in threads:
            thread.start()
        try:
            self.kill_nodes()
            if self.kills == 0:
                self.wait(self.deadline - time.monotonic())
        finally:
            self.cluster.is_over.set()
            for thread in threads:
                thread.join()

    # Troubles

    def node(self):
        return self.trouble_random.choice(self.cluster.nodes)

    def restart_node(self):
        node = self.node()
        with node.process_lock:
            if node.is_away:
                return
            node.terminate()
            node.start(self.cluster.has_failed.is_set)

    def pause_beyond_lease(self):
        with self.node().stopped():
            self.wait(LEASE_S + self.trouble_random.uniform(0.5, 3))

    def pause_shortly(self):
        with self.node().stopped():
            self.wait(self.trouble_random.uniform(0.1, 3))

    def relay(self, mode, shortest_s, longest_s, delay_s=0.0):
        relay = self.node().relay
        relay.delay_s = delay_s
        relay.set_mode(mode)
        try:
            self.wait(self.trouble_random.uniform(shortest_s, longest_s))
        finally:
            relay.set_mode(Mode.PASSES)

    def cut_off_node(self):
        self.relay(Mode.REFUSES, 1, 20)

    def stalled_connection(self):
        self.relay(Mode.STALLS, 1, 25)

    def lost_answers(self):
        self.relay(Mode.SWALLOWS, 1, 12)

    def cut_commits(self):
        relay = self.node().relay
        before = relay.cuts
        relay.set_mode(Mode.CUTS_COMMITS)
        try:
            end = time.monotonic() + self.trouble_random.uniform(1, 8)
            while time.monotonic() < end and not self.is_over():
                self.wait(0.05)
        finally:
            relay.set_mode(Mode.PASSES)
        self.cluster.count("commits whose answer was cut off", relay.cuts - before)

    def slow_database(self):
        for node in self.cluster.nodes:
            node.relay.delay_s = self.trouble_random.uniform(0.01, 0.15)
            node.relay.set_mode(Mode.DELAYS)
        self.wait(self.trouble_random.uniform(2, 8))
        for node in self.cluster.nodes:
            node.relay.set_mode(Mode.PASSES)

    def restart_database(self):
        self.cluster.database.stop()
        self.wait(self.trouble_random.uniform(0, 3))
        self.cluster.database.start()

    def crash_database(self):
        self.cluster.database.stop(signal.SIGQUIT)
        self.wait(self.trouble_random.uniform(0, 3))
        self.cluster.database.start()

    def end_sessions_of_the_server(self):
        self.cluster.database.run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'umad%'", "postgres")

    def full_database(self):
        filler = self.cluster.database.folder / "data" / "filler"
        with open(filler, "wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        self.wait(self.trouble_random.uniform(3, 8))
        filler.unlink()


    # Troubles of links, in network namespaces

    def cut(self, *pairs):
        """Cuts links for a while, which may be longer than the lease."""
        net = self.cluster.database.network
        for pair in pairs:
            net.cut(*pair)
        try:
            self.wait(self.trouble_random.uniform(2, LEASE_S + 10))
        finally:
            for pair in pairs:
                net.mend(*pair)

    def cut_from_database(self):
        self.cut((self.node().name, "db"))

    def cut_from_router(self):
        self.cut((self.node().name, "router"))

    def cut_from_store(self):
        self.cut((self.node().name, "store"))

    def cut_two_nodes_from_router_and_each_other(self):
        one, other = (node.name for node in self.trouble_random.sample(self.cluster.nodes, 2))
        self.cut((one, other), (one, "router"), (other, "router"))

    def cut_two_nodes_from_database(self):
        one, other = (node.name for node in self.trouble_random.sample(self.cluster.nodes, 2))
        self.cut((one, "db"), (other, "db"))

    def lose_answers_of_database(self):
        net, name = self.cluster.database.network, self.node().name
        net.cut_one_way("db", name)
        try:
            self.wait(self.trouble_random.uniform(2, LEASE_S + 10))
        finally:
            net.mend("db", name)

    def unplug_node(self):
        net, name = self.cluster.database.network, self.node().name
        net.unplug(name)
        try:
            self.wait(self.trouble_random.uniform(2, LEASE_S + 10))
        finally:
            net.plug(name)


PARTITIONS = ("cut_from_database", "cut_from_router", "cut_from_store", "cut_two_nodes_from_router_and_each_other",
              "cut_two_nodes_from_database", "lose_answers_of_database", "unplug_node")
ALL_TROUBLES = ("restart_node", "pause_beyond_lease", "pause_shortly", "cut_off_node", "stalled_connection", "lost_answers", "cut_commits",
                "slow_database", "restart_database", "crash_database", "end_sessions_of_the_server")


@contextlib.contextmanager
def small_file_system(folder, mebibytes):
    """Mounts a small file system in memory at the folder for the block; needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "uma-faults", folder], check=True, timeout=uma.WAIT_S)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=uma.WAIT_S)
