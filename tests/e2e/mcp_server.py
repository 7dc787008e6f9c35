"""A server of the Model Context Protocol on standard input and output, for test_agents.py. Its tool reads notes.txt."""

import json
import pathlib
import sys

READ_NOTES = {"name": "read_notes", "description": "Reads the notes.",
              "inputSchema": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}}
    if method == "tools/list":
        return {"tools": [READ_NOTES]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": pathlib.Path("notes.txt").read_text()}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:  # the others are notifications
        result = answer(request["method"], request.get("params"))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
