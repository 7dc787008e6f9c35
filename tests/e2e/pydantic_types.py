"""Pydantic's types for test_schema_types.py. Without an argument: a line {"name", "schema"} for each. With "parse": reads lines
{"name", "text"}, and answers each with {"problem"}: why the type does not take the JSON text, or null."""

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import sys
import typing
import uuid

import pydantic
from pydantic import Field
from typing_extensions import TypedDict

Annotated, Literal, Optional, Union = typing.Annotated, typing.Literal, typing.Optional, typing.Union


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Point(pydantic.BaseModel):
    x: float
    y: float = 0.0


class Strict(pydantic.BaseModel, extra="forbid"):
    a: int


class Loose(pydantic.BaseModel, extra="allow"):
    a: int


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    barks: bool


class Tree(pydantic.BaseModel):
    name: str
    children: "list[Tree]" = []


class Movie(TypedDict, total=False):
    title: str
    year: int


class Pair(typing.NamedTuple):
    left: int
    right: str = ""


@dataclasses.dataclass
class Size:
    width: int
    height: Optional[int] = None


TYPES = {
    # Texts.
    "str": str,
    "str min max": Annotated[str, Field(min_length=2, max_length=5)],
    "str pattern": Annotated[str, Field(pattern=r"^[A-Z]{2}\d{3}$")],
    "str pattern and max": Annotated[str, Field(pattern=r"^[a-z_]+$", max_length=20)],
    "str pattern and min": Annotated[str, Field(pattern=r"^(\d{3})+$", min_length=7)],
    "str word edge": Annotated[str, Field(pattern=r"^\bfoo\b.*$", max_length=30)],
    "constr": pydantic.constr(strip_whitespace=True, to_lower=True, max_length=9),
    "bytes": bytes,
    "SecretStr": pydantic.SecretStr,
    "SecretBytes": pydantic.SecretBytes,
    "EmailStr": pydantic.EmailStr,
    "NameEmail": pydantic.NameEmail,
    "AnyUrl": pydantic.AnyUrl,
    "HttpUrl": pydantic.HttpUrl,
    "AnyHttpUrl": pydantic.AnyHttpUrl,
    "UUID": uuid.UUID,
    "UUID1": pydantic.UUID1,
    "UUID4": pydantic.UUID4,
    "UUID7": pydantic.UUID7,
    "Path": pathlib.Path,
    "FilePath": pydantic.FilePath,
    "DirectoryPath": pydantic.DirectoryPath,
    "NewPath": pydantic.NewPath,
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address,
    "IPv4Network": ipaddress.IPv4Network,
    "IPv6Interface": ipaddress.IPv6Interface,
    "IPvAnyAddress": pydantic.IPvAnyAddress,
    "IPvAnyNetwork": pydantic.IPvAnyNetwork,
    "Base64Str": pydantic.Base64Str,
    "Base64Bytes": pydantic.Base64Bytes,
    "Base64UrlStr": pydantic.Base64UrlStr,
    "Pattern": re.Pattern,
    "Json": pydantic.Json,
    "Literal": Literal["a", 2, None],
    "Enum": Colour,
    "IntEnum": Level,
    # Dates.
    "date": datetime.date,
    "datetime": datetime.datetime,
    "AwareDatetime": pydantic.AwareDatetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    # Numbers.
    "int": int,
    "float": float,
    "bool": bool,
    "None": None,
    "Decimal": decimal.Decimal,
    "Decimal of places": Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)],
    "int multiple": Annotated[int, Field(multiple_of=5)],
    "float multiple": Annotated[float, Field(multiple_of=0.01)],
    "float ge le": Annotated[float, Field(ge=0.5, le=1.75)],
    "float gt lt": Annotated[float, Field(gt=-0.001, lt=0.1)],
    "int gt lt": Annotated[int, Field(gt=2, lt=1000)],
    "PositiveInt": pydantic.PositiveInt,
    "NonNegativeFloat": pydantic.NonNegativeFloat,
    "NegativeFloat": pydantic.NegativeFloat,
    "StrictInt": pydantic.StrictInt,
    "FiniteFloat": pydantic.FiniteFloat,
    "ByteSize": pydantic.ByteSize,
    # Collections.
    "list": list[int],
    "list of lengths": Annotated[list[str], Field(min_length=1, max_length=3)],
    "set": set[str],
    "frozenset": frozenset[int],
    "set of an enum": set[Colour],
    "set of literals": Annotated[set[Literal["a", "b", "c", "d", "e", "f", "g"]], Field(min_length=2, max_length=4)],
    "set of bools": set[bool],
    "set of small ints": set[Annotated[int, Field(ge=1, le=6)]],
    "tuple": tuple[int, str],
    "tuple of any length": tuple[float, ...],
    "deque": collections.deque[int],
    "dict": dict[str, int],
    "dict of an enum": dict[Colour, float],
    "dict of literals": dict[Literal["x", "y"], int],
    "dict of patterns": dict[Annotated[str, Field(pattern=r"^k\d$")], bool],
    "dict of ints": dict[int, str],
    "dict of lengths": Annotated[dict[str, int], Field(min_length=1)],
    "defaultdict": collections.defaultdict[str, list[int]],
    "Any": typing.Any,
    # Others.
    "Optional": Optional[int],
    "Union": Union[int, str, None],
    "discriminated": Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    "model": Point,
    "strict model": Strict,
    "loose model": Loose,
    "list of models": list[Point],
    "tree": Tree,
    "TypedDict": Movie,
    "NamedTuple": Pair,
    "dataclass": Size,
}


def model(name):
    return pydantic.create_model("Reply", f=(TYPES[name], ...))


def problem_of(name, text):
    try:
        model(name).model_validate_json(text)
    except pydantic.ValidationError as problem:
        return str(problem)
    return None


if __name__ == "__main__":
    if sys.argv[1:] == ["parse"]:
        for line in sys.stdin:
            print(json.dumps({"problem": problem_of(**json.loads(line))}))
    else:
        for each in TYPES:
            print(json.dumps({"name": each, "schema": model(each).model_json_schema()}))
