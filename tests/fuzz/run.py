"""Builds the fuzzers, runs one on each core and reports their findings. Exit code 1: something was found."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/e2e"))

import machine  # noqa: E402 - it is in that folder

CORPUS = ROOT / "tests/fuzz/corpus"
ALL = sorted(path.name.removesuffix("_fuzzer.cpp") for path in (ROOT / "tests/fuzz").glob("*_fuzzer.cpp"))

# Maximum length of inputs in bytes: a loadable model file is longer than useful inputs of other fuzzers.
MAX_LEN = {"gguf_load": 16_384, "diffusion": 131_072}
# Limit for one input on a quiet machine. A child that loads a model may take a minute of CPU time.
TIMEOUT_S = {"gguf_load": 120}

# The coverage of these sources is counted: they decode untrusted bytes.
DECODERS = """
src/base/base64.cpp src/base/utf8.cpp src/chat/calls/argument_reader.cpp src/chat/calls/element_reader.cpp src/chat/calls/json_scanner.cpp
src/chat/calls/loose_reader.cpp src/chat/calls/nested_elements.cpp src/chat/calls/parameter_types.cpp src/chat/reply/reply_parser.cpp
src/engine/session/context_shift.cpp src/engine/session/portable_session.cpp src/engine/session/record_input.cpp
src/grammar/gbnf.cpp src/grammar/grammar.cpp src/grammar/json_pattern.cpp src/grammar/json_schema.cpp
src/grammar/json_schema_flatten.cpp src/grammar/json_schema_formats.cpp src/grammar/json_schema_numbers.cpp
src/grammar/json_schema_values.cpp src/image/decode_sound.cpp src/image/image_header.cpp src/jinja/builtins.cpp src/jinja/chat_template.cpp
src/jinja/collection_builtins.cpp src/jinja/expression_parser.cpp src/jinja/interpreter.cpp src/jinja/json_reader.cpp
src/jinja/lexer.cpp src/jinja/number_builtins.cpp src/jinja/parser.cpp src/jinja/text_builtins.cpp src/jinja/value.cpp
src/jinja/value_tests.cpp src/json/field_reader.cpp src/kv/disk/portable_state.cpp src/kv/catalog/record_check.cpp
src/kv/catalog/record_rows.cpp src/kv/disk/session_file.cpp src/kv/disk/state_file.cpp src/llm/picture/clip_tokens.cpp src/llm/picture/diffusion_file.cpp
src/llm/picture/diffusion_graph.cpp src/llm/file/gguf_header.cpp src/llm/picture/prompt_weights.cpp src/llm/file/safetensors_header.cpp src/llm/file/state_values.cpp
src/wire/openai/embedding_codec.cpp src/wire/own/frame.cpp src/wire/generate_fields.cpp src/wire/image_fields.cpp
src/wire/anthropic/message_blocks.cpp src/wire/anthropic/messages_decoder.cpp
src/wire/ollama/ollama_decoder.cpp src/wire/openai/openai_codec.cpp src/wire/query.cpp src/wire/own/request_codec.cpp src/wire/openai/response_ids.cpp src/wire/openai/responses_decoder.cpp
src/wire/openai/stored_responses.cpp
""".split()


def build(folder, names, flags=()):
    if not (folder / "build.ninja").exists() or flags:
        subprocess.run(["cmake", "--preset", "fuzz", "-B", folder, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", *[name + "_fuzzer" for name in names]], check=True)


def command(folder, name, *flags):
    return [
        folder / f"bin/{name}_fuzzer",
        f"-max_len={MAX_LEN.get(name, 4096)}",
        f"-timeout={round(TIMEOUT_S.get(name, 25) * machine.slowness())}",
        *flags,
    ]


def run(folder, found, name, seconds, fresh):
    """Runs one fuzzer and prints one line with the result. Returns whether something was found."""
    new = found / name
    new.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as empty, open(found / f"{name}.log", "w", encoding="utf-8", errors="replace") as log:
        # The corpus in the repository is only read.
        folders = [empty if fresh else new, CORPUS / name]
        flags = [f"-max_total_time={seconds}", f"-artifact_prefix={found}/{name}-", *folders]
        status = subprocess.run(command(folder, name, *flags), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    text = (found / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    runs = ([int(number) for number in re.findall(r"^#(\d+)", text, re.M)] or [0])[-1]
    # The fuzzer ends after its current input.
    took_s = max([int(number) for number in re.findall(r"^Done \d+ runs in (\d+) second", text, re.M)] or [seconds])
    corpus = (re.findall(r"corp: (\d+)/(\S+)", text) or [("0", "0b")])[-1]
    points = (re.findall(r"cov: (\d+)", text) or ["0"])[-1]
    outcome = "nothing found" if status == 0 else "FOUND " + " ".join(re.findall(r"Test unit written to (\S+)", text) or [f"status {status}"])
    print(
        f"{name + '_fuzzer':24} {runs:9} runs {runs / max(took_s, 1):8.0f}/s  corpus {corpus[0]:>5} ({corpus[1]})  {points:>6} points  {outcome}",
        flush=True,
    )
    if status != 0:
        print("\n".join(text.splitlines()[-40:]))
    return status != 0


def search(options):
    folder = ROOT / "build/fuzz"
    build(folder, options.names)
    seconds = max(1, round(options.seconds if options.seconds is not None else 60 * options.minutes))
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        has_found = pool.map(lambda name: run(folder, folder / "found", name, seconds, options.fresh), options.names)
        findings = [name for name, found in zip(options.names, has_found) if found]
    print(f"fuzz: {len(options.names)} fuzzers, {len(findings)} with findings", *findings)
    return 1 if findings else 0


def coverage(options):
    """Counts the lines of the decoders that the corpora reach: the corpora in the repository and new inputs."""
    for tool in ("llvm-profdata-19", "llvm-cov-19"):
        if shutil.which(tool) is None:
            sys.exit(f"fuzz: {tool} is missing: install llvm-19 with script/bootstrap")
    folder = ROOT / "build/fuzz-coverage"
    build(folder, options.names, ["-DUMA_COVERAGE=ON"])
    profiles = folder / "profiles"
    shutil.rmtree(profiles, ignore_errors=True)
    profiles.mkdir()
    for name in options.names:
        corpora = [path for path in (CORPUS / name, ROOT / "build/fuzz/found" / name) if path.is_dir()]
        environment = {"LLVM_PROFILE_FILE": str(profiles / f"{name}.profraw"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command(folder, name, "-runs=0", *corpora), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            print(f"{name}_fuzzer: an input of its corpus breaks a property", flush=True)
    merged = profiles / "all.profdata"
    subprocess.run(["llvm-profdata-19", "merge", "-sparse", "-o", merged, *profiles.glob("*.profraw")], check=True)
    programs = [folder / f"bin/{name}_fuzzer" for name in options.names]
    objects = [argument for program in programs[1:] for argument in ("-object", program)]
    # The paths in the programs are those of the repository's root (cmake/compiler.cmake).
    report = subprocess.run(
        ["llvm-cov-19", "report", programs[0], *objects, f"-instr-profile={merged}", f"-path-equivalence=/,{ROOT}", *DECODERS],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    total = None
    for line in report.splitlines():
        words = line.split()
        if len(words) < 10 or not words[0].endswith((".cpp", "TOTAL")):
            continue
        lines, missed = int(words[7]), int(words[8])
        print(f"{words[0]:44} {lines - missed:6} of {lines:6} lines  {100 * (lines - missed) / max(lines, 1):5.1f} %")
        total = words[0] == "TOTAL"
    if not total:
        print(report)
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="fuzzers to run, such as grammar or session_import (default: all)")
    parser.add_argument("--minutes", type=float, default=1, help="minutes per fuzzer (default 1)")
    parser.add_argument("--seconds", type=float, help="seconds per fuzzer, instead of --minutes")
    parser.add_argument("--fresh", action="store_true", help="begin with the corpora in the repository only, and keep no new inputs")
    parser.add_argument("--coverage", action="store_true", help="count the lines of the decoders that the corpora reach")
    options = parser.parse_args()
    options.names = [name.removesuffix("_fuzzer") for name in options.names] or ALL
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        parser.error(f"there is no fuzzer {unknown[0]}; the fuzzers are {' '.join(ALL)}")
    return coverage(options) if options.coverage else search(options)


if __name__ == "__main__":
    sys.exit(main())
