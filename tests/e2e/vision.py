"""A model that reads images, two pictures, and messages with them."""

import base64
import pathlib
import random
import tempfile

import pictures
from uma import BUILD, TINY_REGISTER, UMAD

MODEL = TINY_REGISTER
PROJECTOR = BUILD / "models" / "mmproj-tiny-register.gguf"
FOLDER = tempfile.TemporaryDirectory(prefix="uma-pictures-")
GRAD = pathlib.Path(FOLDER.name) / "grad.png"
RED = pathlib.Path(FOLDER.name) / "red.png"
GRAD.write_bytes(pictures.GRADIENT)
RED.write_bytes(pictures.RED)
CLI = UMAD.with_name("uma-cli")
FLAGS = ("--mmproj", PROJECTOR, "--kv-cells", "8192", "--slots", "4", "--threads", "1")

SAME_BITS = "scheduler: {reproducible: on}\n"


def data_of(path):
    return base64.b64encode(path.read_bytes()).decode()


def data_uri(path):
    return f"data:image/png;base64,{data_of(path)}"


def question(path, text="What is this?"):
    """A message of a user with an image in front of the text."""
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_uri(path)}}, {"type": "text", "text": text}]}


def noise():
    """A PNG file of 2.4 MB, whatever packs it."""
    chance = random.Random(7)
    return pictures.png(900, 900, b"".join(b"\0" + chance.randbytes(2700) for _ in range(900)))
