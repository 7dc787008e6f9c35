"""Short clips of sound, written with the standard library only."""

import math
import struct

RATE = 16_000


def tone(seconds, hertz, rate=RATE):
    """Samples of a tone that swells and fades twice a second."""
    return [round(9000 * math.sin(2 * math.pi * hertz * i / rate) * math.sin(2 * math.pi * i / rate)) for i in range(round(seconds * rate))]


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wav_format(tag=1, channels=1, rate=RATE, bits=16):
    size = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * size & 0xffffffff, size & 0xffff, bits))


def wav(samples, channels=1, rate=RATE):
    """A WAV file that has these samples in each channel."""
    data = struct.pack(f"<{len(samples) * channels}h", *(sample for sample in samples for _ in range(channels)))
    return riff(wav_format(channels=channels, rate=rate), chunk(b"data", data))


def _crc(data, polynomial, bits):
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value >> (bits - 1) else value << 1) & ((1 << bits) - 1)
    return value


def flac(samples, claimed=None, rate=RATE):
    """A FLAC file of one channel, whose frames have the samples as they are. `claimed`: the number of samples in its header."""
    block = 4096
    packed = rate << 44 | 15 << 36 | (len(samples) if claimed is None else claimed)
    head = struct.pack(">HH6xQ16x", block, block, packed)
    frames = b""
    for number, begin in enumerate(range(0, len(samples), block)):
        part = samples[begin:begin + block]
        assert number < 128
        # A fixed block size, whose last 16 bits follow; the rate of the header; one channel of 16 bits.
        start = struct.pack(">HBBBH", 0xfff8, 0x70, 0x08, number, len(part) - 1)
        start += bytes((_crc(start, 0x07, 8),))
        frame = start + b"\x02" + struct.pack(f">{len(part)}h", *part)  # Verbatim.
        frames += frame + struct.pack(">H", _crc(frame, 0x8005, 16))
    return b"fLaC" + struct.pack(">I", 0x80000000 | len(head)) + head + frames


def silent_mp3(frames, claimed=None):
    """An MP3 file of 32,000 Hz and one channel: frames of 36 ms without sound. `claimed`: their number, as its first frame says."""
    head = bytes.fromhex("fffb18c0")
    first = b"" if claimed is None else (head + bytes(17) + b"Xing" + struct.pack(">II", 1, claimed)).ljust(144, b"\0")
    return first + head.ljust(144, b"\0") * frames


LOW = wav(tone(2, 220))
HIGH = wav(tone(2, 1760))


def hostile_clips():
    """Name and bytes of files that must be refused as clips."""
    plain = struct.pack("<100h", *range(100))
    return {
        "empty": b"",
        "text": b"hello",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(40),
        "ogg": b"OggS" + bytes(40),
        "wav without data": riff(wav_format()),
        "wav without samples": riff(wav_format(), chunk(b"data", b"")),
        "wav of no channels": riff(wav_format(channels=0), chunk(b"data", plain)),
        "wav of 65,535 channels": riff(wav_format(channels=65_535), chunk(b"data", plain)),
        "wav of 1 Hz": riff(wav_format(rate=1), chunk(b"data", plain)),
        "wav of 4 GHz": riff(wav_format(rate=4_000_000_000), chunk(b"data", plain)),
        "adpcm": riff(wav_format(tag=2, bits=4), chunk(b"fact", b"\xff" * 4), chunk(b"data", plain)),
        "wav of numbers that are not finite": riff(wav_format(tag=3, bits=32), chunk(b"data", struct.pack("<f", math.nan) * 9000)),
        "truncated flac": flac([0] * 100)[:20],
        "mp3 in noise": silent_mp3(3) + b"\x55" * 100_000,
        "mp3 with the tag of a gigabyte": b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + silent_mp3(3),
    }


def boastful_clips():
    """Name and bytes of files of at most 2 s that claim another length: as many samples count as there are."""
    frames = silent_mp3(9)
    count = silent_mp3(0, claimed=4_000_000_000)
    tag = b"ID3\x04\x00\x00\x00\x00\x00\x14" + bytes(20)
    extension = struct.pack("<HHIIHHH21x", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 21)  # A byte too short for a reader of WAV files.
    return {
        "truncated wav": LOW[:1000],
        "wav of unknown length": LOW[:40] + b"\xff\xff\xff\xff" + LOW[44:],
        "wav with an mp3 in it": riff(chunk(b"JUNK", count), chunk(b"fmt ", extension), chunk(b"data", bytes(1000)) + frames),
        "flac of days": flac([0] * 100, claimed=2**36 - 1),
        "flac without length": flac([0] * 100, claimed=0),
        "mp3 of years": silent_mp3(3, claimed=2**32 - 1),
        "mp3 with two tags": tag + tag + count + frames,
    }
