"""Open WebUI, with the daemon as its OpenAI and its Ollama server and for the vectors of its documents."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import httpx

from scenarios import CONTENT, FILE, PLAIN, SCRIPTED, URL, VECTORS, equal, run

SETTINGS = {
    "OPENAI_API_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "unused", "OLLAMA_BASE_URL": URL, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "unused",
    "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "ENABLE_VERSION_UPDATE_CHECK": "False", "CORS_ALLOW_ORIGIN": "http://127.0.0.1",
    "RAG_EMBEDDING_ENGINE": "openai", "RAG_OPENAI_API_BASE_URL": f"{URL}/v1", "RAG_OPENAI_API_KEY": "unused", "RAG_EMBEDDING_MODEL": VECTORS,
    "AUDIO_STT_ENGINE": "openai",
}
ASKED = [{"role": "user", "content": "Hello"}]


@contextlib.contextmanager
def served(wait_s=600):
    """Starts the server in a new folder; yields a client that is logged in. Ends it with the block."""
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="uma-e2e-webui-") as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "DATA_DIR": folder} | SETTINGS
        program = pathlib.Path(sys.executable).with_name("open-webui")
        server = subprocess.Popen([program, "serve", "--host", "127.0.0.1", "--port", str(port)], cwd=folder, env=environment, stdout=sys.stderr)
        try:
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=wait_s)
            end = time.monotonic() + wait_s
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health").status_code == 200:
                        break
                assert server.poll() is None and time.monotonic() < end, "Open WebUI does not start"
                time.sleep(0.2)
            token = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()["token"]
            client.headers["authorization"] = f"Bearer {token}"
            yield client
        finally:
            server.kill()
            server.wait()


def json_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_models_of_both_apis_are_listed():
    names = {model["id"] for model in json_of(webui.get("/api/models"))["data"]}
    assert {SCRIPTED, VECTORS} <= names, names
    names = {model["name"] for model in json_of(webui.get("/ollama/api/tags"))["models"]}
    assert {f"{SCRIPTED}:latest", f"{VECTORS}:latest"} <= names, names


def test_chats_over_both_apis():
    answer = json_of(webui.post("/api/chat/completions", json={"model": SCRIPTED, "messages": ASKED, "stream": False}))
    equal(PLAIN, answer["choices"][0]["message"]["content"])
    answer = json_of(webui.post("/ollama/api/chat", json={"model": f"{SCRIPTED}:latest", "messages": ASKED, "stream": False}))
    equal(PLAIN, answer["message"]["content"])


def test_a_streamed_chat():
    said = ""
    with webui.stream("POST", "/api/chat/completions", json={"model": SCRIPTED, "messages": ASKED, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: ")).get("choices")
                said += (choices[0]["delta"].get("content") or "") if choices else ""
    equal(PLAIN, said)


def test_a_document_is_found_by_its_vectors():
    with open(FILE, "rb") as file:
        uploaded = json_of(webui.post("/api/v1/files/", files={"file": file}, params={"process_in_background": False}))
    collection = f"file-{uploaded['id']}"
    found = json_of(webui.post("/api/v1/retrieval/query/collection", json={"collection_names": [collection], "query": "heron", "k": 1}))
    assert CONTENT in found["documents"][0][0], found


if __name__ == "__main__":
    with served() as webui:
        run()
