"""Real coding agents against a daemon with default settings, started by `uma-cli launch`: each reads a file by a tool of its own
and answers with its content. The model's weights follow a script (tools/make_model/scripted_weights.h). Daemon and agent have
no network but the loopback.

`script/bootstrap --agents` installs the agents of agents/package.json; Claude Code is used if it is on PATH."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import cli
import uma

PROGRAMS = pathlib.Path(__file__).parent / "agents" / "node_modules" / ".bin"
QUESTION = "What is the codeword in notes.txt?"
CODEWORD = "violet heron 4711"
ANSWER = f"The codeword in the file is {CODEWORD}."
LOOP_S = 10 * uma.WAIT_S  # a loop takes up to half a minute on an idle machine, most of it for the agent's first prompt


class Loopback:
    """A network namespace with the loopback alone, held by a process until close(). Raises unittest.SkipTest if the system does
    not permit it."""

    def __init__(self):
        problems = []
        for flags, enter in (((), ()), (("--user", "--map-root-user"), ("--user", "--preserve-credentials"))):
            self.holder = subprocess.Popen(["unshare", "--net", *flags, "--", "sh", "-c", "ip link set lo up && echo ready && exec cat"],
                                           text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.enter = ["nsenter", "--target", str(self.holder.pid), "--net", *enter, "--"]
            if self.holder.stdout.readline() == "ready\n":
                return
            problems.append(self.holder.stderr.read().strip())
            self.close()
        raise unittest.SkipTest(f"network namespaces of our own are not permitted here: {'; '.join(problems)}")

    def close(self):
        with contextlib.suppress(OSError):
            self.holder.stdin.close()
        self.holder.wait(uma.WAIT_S)
        self.holder.stdout.close()
        self.holder.stderr.close()


class Request:
    """A line of the access log."""

    PATTERN = re.compile(r"(?:POST|GET|HEAD|PUT|DELETE) (\S+) (\d+) .*?(?: agent=(\S+))?(?: tokens=(\d+)\+(\d+))?$")

    def __init__(self, found):
        self.path, self.status = found.group(1), int(found.group(2))
        self.prompt, self.reply = (int(number or 0) for number in found.group(4, 5))
        self.agent = found.group(3)

    def __repr__(self):
        return f"{self.path} {self.status} {self.prompt}+{self.reply}"


class AgentTest(uma.DaemonTest):
    """Asks an agent twice. Subclasses say how."""

    agent = None
    asks = ()  # the arguments before the first question
    asks_again = ()  # before the second, in the same conversation
    path = None  # where its requests go
    names_itself = True
    remedy = "run script/bootstrap --agents"
    takes_long = True

    @classmethod
    def tool(cls, notes):
        """The call that reads the file `notes`."""
        raise NotImplementedError

    @classmethod
    def program(cls):
        return PROGRAMS / cls.agent

    @classmethod
    def setUpClass(cls):
        if not cls.program().exists():
            raise unittest.SkipTest(f"{cls.agent} is not installed: {cls.remedy}")
        network = Loopback()
        cls.addClassCleanup(network.close)
        cls.enter = network.enter
        cls.home = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-agent-")))
        cls.work = cls.home / "work"
        cls.work.mkdir()
        notes = cls.work / "notes.txt"
        notes.write_text(f"Notes\nThe codeword is: {CODEWORD}\nend\n")
        script = {"tool": cls.tool(notes), "answer_prefix": "The codeword in the file is", "quote_after": "codeword is:",
                  "thinking": "The file must be read first.", "plain_answer": "A reply without tools."}
        (cls.home / "script.json").write_text(json.dumps(script))
        model = cls.home / "scripted.gguf"
        subprocess.run([uma.MAKE_MODEL, "--script", cls.home / "script.json", "--out", model], check=True, timeout=uma.WAIT_S)
        # The default address, which others may have outside. A verified reuse would wait until the whole prompt is computed again.
        cls.daemon = uma.Daemon(model, "--http", "127.0.0.1:8642", environment={"UMA_VERIFY": 0})
        cls.daemon.arguments = cls.enter + cls.daemon.arguments
        cls.addClassCleanup(cls.daemon.kill)
        cls.daemon.start().wait_ready()

    def environment(self):
        return {"PATH": f"{self.program().parent}:{os.environ['PATH']}", "HOME": str(self.home), "LC_ALL": "C.UTF-8", "TERM": "dumb",
                "UMA_SOCKET": str(self.daemon.socket_path)}

    def run_agent(self, *arguments):
        """Runs the agent to its end; returns its standard output."""
        process = subprocess.Popen([*self.enter, cli.CLI, "launch", self.agent, "--", *arguments], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=self.work,
                                   env=self.environment(), start_new_session=True)
        try:
            said, problems = process.communicate(timeout=LOOP_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the agents start processes of their own
            process.wait()
        self.assertEqual(0, process.returncode, f"{said[-2000:]}\n{problems[-2000:]}\n{self.daemon.log()[-4000:]}")
        return said

    def requests(self):
        """All requests so far, in the order of their ends."""
        uma.until(lambda: self.client.metrics()["requests_open"] == 0, "no open requests")
        return [Request(found) for line in self.daemon.log().splitlines() if (found := Request.PATTERN.search(line))]

    def ask(self, *arguments):
        """Runs a loop. Returns its requests, and the number of prompt tokens that were computed for them."""
        requests_before, metrics_before = len(self.requests()), self.client.metrics()
        said = self.run_agent(*arguments, QUESTION)
        self.assertIn(ANSWER, said)
        self.assertNotIn("export ", said, "what launch shows is not the agent's output")
        requests = self.requests()[requests_before:]
        turns = [request for request in requests if request.path == self.path and request.prompt > 0]
        names = {request.agent for request in turns}
        self.assertEqual((1, self.names_itself), (len(names), None not in names), "one agent asks, and says so if it can")
        metrics = self.client.metrics()
        self.assertEqual(metrics_before["requests_failed_total"], metrics["requests_failed_total"], requests)
        self.assertLessEqual({request.status for request in requests}, {200, 499}, requests)  # 499: the agent had ended
        reused = metrics["reused_tokens_total"] - metrics_before["reused_tokens_total"]
        return requests, sum(request.prompt for request in requests) - reused

    def check_two_questions(self):
        requests, computed = self.ask(*self.asks)
        turns = [request for request in requests if request.path == self.path]
        call, answer = sorted(turns, key=lambda request: request.prompt)[-2:]
        self.assertLess(call.prompt, answer.prompt, requests)
        whole = sum(request.prompt for request in requests)
        self.assertLess(computed, whole - 0.95 * call.prompt, f"the prompt with the result was computed anew: {requests}")

        requests, computed = self.ask(*self.asks_again)
        self.assertGreater(max(request.prompt for request in requests), answer.prompt, requests)
        self.assertLess(computed, 0.1 * answer.prompt, f"a later question computes the conversation anew: {requests}")


class Codex(AgentTest):
    agent = "codex"
    # A sandbox in a container needs rights that the tests do not.
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    asks = ("exec", *flags)
    asks_again = ("exec", "resume", "--last", *flags)
    path = "/v1/responses"

    @classmethod
    def tool(cls, notes):
        return {"name": "exec_command", "arguments": {"cmd": f"cat {notes.name}"}}

    def test_two_questions(self):
        self.check_two_questions()

    def test_a_tool_that_others_run_is_left_out(self):
        self.ask(*self.asks, "-c", 'web_search="live"')


class CodexWebSocket(AgentTest):
    """Codex asks over one connection for all requests of a run, and sends only what is new."""

    agent = "codex"
    asks = (*Codex.asks, "-c", "model_providers.uma.supports_websockets=true")

    @classmethod
    def tool(cls, notes):
        return Codex.tool(notes)

    def test_a_loop(self):
        self.assertIn(ANSWER, self.run_agent(*self.asks, QUESTION))
        (upgrade,) = (request for request in self.requests() if request.status == 101)
        self.assertEqual("/v1/responses", upgrade.path)
        self.assertGreater(upgrade.reply, 0)
        self.assertFalse([request for request in self.requests() if request.path == "/v1/responses" and request.status != 101])
        metrics = self.client.metrics()
        self.assertGreater(metrics["reused_tokens_total"], metrics["prompt_tokens_total"] // 2)


class CodexMcp(AgentTest):
    """Codex offers the tools of a server of the Model Context Protocol in a namespace, and expects the call there."""

    agent = "codex"
    path = Codex.path
    server = pathlib.Path(__file__).parent / "mcp_server.py"
    asks = (*Codex.asks, "-c", f"mcp_servers.notes.command={json.dumps(sys.executable)}", "-c",
            f"mcp_servers.notes.args={json.dumps([str(server)])}")

    @classmethod
    def tool(cls, notes):
        return {"name": "mcp__notes__read_notes", "arguments": {"page": 1}}

    def test_a_tool_of_a_namespace_is_called(self):
        self.ask(*self.asks)


class Opencode(AgentTest):
    agent = "opencode"
    asks = ("run",)
    asks_again = ("run", "--continue")
    path = "/v1/chat/completions"

    @classmethod
    def tool(cls, notes):
        return {"name": "read", "arguments": {"filePath": str(notes)}}

    def test_two_questions_and_a_title(self):
        self.check_two_questions()
        # The agent asks for a title beside the first question.
        title, *turns = sorted(self.requests(), key=lambda request: request.prompt)
        self.assertEqual((200, 4), (title.status, len(turns)))
        self.assertLess(title.prompt, turns[0].prompt / 2)


class Qwen(AgentTest):
    agent = "qwen"
    names_itself = False  # It tells its session to its maker's servers only (0.24: metadata.sessionId).
    asks = ("--yolo", "--prompt")
    asks_again = ("--continue", "--yolo", "--prompt")
    path = "/v1/chat/completions"

    @classmethod
    def tool(cls, notes):
        return {"name": "read_file", "arguments": {"file_path": str(notes)}}

    def test_two_questions(self):
        self.check_two_questions()


class Claude(AgentTest):
    agent = "claude"
    asks = ("--allowedTools", "Read", "--print")
    asks_again = ("--continue", *asks)
    path = "/v1/messages"
    remedy = "it is not free software, so the tests leave that to you"

    @classmethod
    def program(cls):
        return pathlib.Path(shutil.which("claude") or "/nonexistent/claude")

    @classmethod
    def tool(cls, notes):
        return {"name": "Read", "arguments": {"file_path": str(notes)}}

    def test_two_questions(self):
        self.check_two_questions()


if __name__ == "__main__":
    unittest.main()
