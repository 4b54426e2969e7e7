"""Protobuf schemas: `.proto` text or descriptor sets to message types.

A descriptor set (`protoc --include_imports --descriptor_set_out=…`) is taken as it is. Text is compiled by the protoc
of `grpcio-tools`, in a process of its own, once per process and schema.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from velostream.errors import Category, SourceError, StoreError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

MAIN_FILE = "schema.proto"
Imports = tuple[tuple[str, str], ...]
"""Further files by the names under which a schema imports them."""

_COMPILE_SECONDS = 60


@cache
def main_file(schema: bytes, imports: Imports = ()) -> FileDescriptor:
    """The file a schema describes: that of the text, or the last one of a descriptor set.

    `SourceError` `unreadable-schema` when it is neither.
    """
    protobuf = _protobuf()
    files = _descriptor_set(schema)
    if files is None:
        files = _compiled(schema, imports)
    pool = protobuf.descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindFileByName(files.file[-1].name)
    except (TypeError, KeyError) as error:
        raise _unreadable(str(error)) from error


def message_of(file: FileDescriptor, name: str | None) -> Descriptor:
    """The message of that name, with or without its package; without a name the only one, or the first."""
    messages = {message.full_name: message for message in file.message_types_by_name.values()}
    if not messages:
        raise _unreadable("it has no message")
    if name is None:
        return next(iter(messages.values()))
    for known, message in _with_nested(messages).items():
        if name in (known, known.removeprefix(f"{file.package}.")):
            return message
    raise SourceError(
        f'message "{name}" is not in the protobuf schema',
        detail="it has " + ", ".join(messages),
        hint=f"WITH ('protobuf.message' = '{next(iter(messages))}')",
        code="unknown-schema",
        category=Category.CONFIGURATION,
    )


@cache
def message_class(message: Descriptor) -> Any:
    """The Python class whose objects are that message."""
    return _protobuf().message_factory.GetMessageClass(message)


def parse_message(message: Descriptor, data: bytes) -> Any:
    """A message of that type; `ValueError` when the bytes are none."""
    try:
        return message_class(message).FromString(data)
    except _protobuf().message.DecodeError as error:
        raise ValueError(str(error)) from error


def message_at(file: FileDescriptor, path: tuple[int, ...]) -> Descriptor:
    """The message at a place: its index in the file, then in the one around it; `ValueError` if there is none."""
    try:
        found = list(file.message_types_by_name.values())[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
    except IndexError as error:
        raise ValueError(f"the schema has no message at {list(path)}") from error
    return found


def place_of(message: Descriptor) -> tuple[int, ...]:
    """Where a message stands in its file; the other way round of `message_at`."""
    outer = message.containing_type
    siblings = list(message.file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
    index = next(index for index, sibling in enumerate(siblings) if sibling.full_name == message.full_name)
    return (index,) if outer is None else (*place_of(outer), index)


def _with_nested(messages: dict[str, Descriptor]) -> dict[str, Descriptor]:
    found = dict(messages)
    for message in messages.values():
        found |= _with_nested({inner.full_name: inner for inner in message.nested_types})
    return found


def _protobuf() -> Any:
    try:
        from google import protobuf
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory  # noqa: F401 - attributes
    except ImportError as error:
        raise StoreError.missing_driver("protobuf", module="google.protobuf", extra="protobuf") from error
    return protobuf


def _descriptor_set(schema: bytes) -> Any | None:
    """A descriptor set, as bytes or in base64; None when the schema is something else."""
    candidates = [schema]
    try:
        candidates.append(base64.b64decode(schema, validate=True))
    except binascii.Error:
        candidates.append(b"")
    descriptors = _protobuf().descriptor_pb2
    for candidate in candidates:
        try:
            found = descriptors.FileDescriptorSet.FromString(candidate)
        except _protobuf().message.DecodeError:
            continue
        if found.file and all(file.name for file in found.file):
            return found
    return None


def _compiled(schema: bytes, imports: Imports) -> Any:
    if importlib.util.find_spec("grpc_tools") is None:
        raise StoreError.missing_driver("protobuf", module="grpc_tools", extra="protobuf")
    with tempfile.TemporaryDirectory(prefix="velostream-proto-") as folder:
        root = Path(folder)
        target = root / "descriptors"
        (root / MAIN_FILE).write_bytes(schema)
        for name, text in imports:
            imported = root / PurePosixPath(name)
            if not imported.resolve().is_relative_to(root.resolve()):
                raise _unreadable(f'it imports "{name}"')
            imported.parent.mkdir(parents=True, exist_ok=True)
            imported.write_text(text)
        arguments = [f"-I{root}", "--include_imports", f"--descriptor_set_out={target}", MAIN_FILE]
        done = subprocess.run(  # noqa: S603 - our own program and arguments
            [sys.executable, "-m", "grpc_tools.protoc", *arguments],
            capture_output=True,
            check=False,
            timeout=_COMPILE_SECONDS,
        )
        if done.returncode:
            raise _unreadable(done.stderr.decode("utf-8", "replace").strip())
        return _protobuf().descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())


def _unreadable(reason: str) -> SourceError:
    return SourceError(
        "the protobuf schema is not one",
        detail=reason,
        hint='syntax = "proto3"; message Row { int64 id = 1; }',
        code="unreadable-schema",
        category=Category.CONFIGURATION,
    )
