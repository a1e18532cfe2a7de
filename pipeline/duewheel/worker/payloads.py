"""From the payload's bytes to what the handler's first parameter asks for.

The rules, by the job's content type and the parameter's annotation:

    annotation `bytes`                the bytes as they are, whatever the content type
    content type application/json     parsed, then checked and converted to the annotation; no bytes at all are null, since the schemas
                                      let producers leave the payload out
    any other content type            the bytes as they are; the annotation must be absent, `Any` or `bytes`

What a JSON parameter may be annotated with, also nested:

    nothing, Any, object              whatever JSON held
    None, bool, str, int, float       that type; an int is accepted for a float, a bool is never a number
    list[T], dict[str, T], list, dict
    T | None, unions                  the first member that accepts the value
    Literal[…], an Enum               one of the values
    a dataclass                       built from an object; names it does not know are ignored, so that producers may add fields first
    a TypedDict                       the object with its known names converted; required names must be there

    >>> @dataclass
    ... class Order:
    ...     id: int
    ...     tags: list[str]
    >>> converter(Order)(json.loads('{"id": 7, "tags": ["a"], "new": true}'), "payload")
    Order(id=7, tags=['a'])

Converters are compiled when the task is registered: an annotation that is not in this list is refused then, not at midnight.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, Union

from duewheel.core.errors import BadConfiguration

JSON: Final = "application/json"

Converter: TypeAlias = Callable[[Any, str], Any]
"""Takes a JSON value and where it stands ("payload.tags[0]"); returns what the annotation asks for or raises PayloadMismatch."""


class PayloadMismatch(Exception):
    """The payload is not what the task's parameter asks for. The run fails with this error."""


def reader(annotation: Any) -> Callable[[bytes, str], Any]:
    """What makes the handler's argument out of a payload and its content type.

    Raises:
        BadConfiguration: the annotation is none of the supported ones.
    """
    if annotation is bytes:
        return lambda payload, content_type: payload
    untyped = annotation in (Any, object)
    convert = None if untyped else converter(annotation)
    decode = json.JSONDecoder().decode

    def read(payload: bytes, content_type: str) -> Any:
        if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
            if untyped:
                return payload
            raise PayloadMismatch(
                f"the payload's content type is {content_type!r}, so its parameter must be annotated bytes, not {_name(annotation)}; "
                f"send it as {JSON}, or change the annotation"
            )
        try:
            try:
                value = decode(payload.decode()) if payload else None
            except ValueError as error:  # of UTF-8 and of JSON alike
                raise PayloadMismatch(f"the payload is declared as {JSON} but cannot be parsed: {error}") from None
            return value if convert is None else convert(value, "payload")
        except RecursionError:
            raise PayloadMismatch("the payload is nested more deeply than Python reads, about a thousand levels") from None

    return read


def converter(annotation: Any) -> Converter:
    """Compiles an annotation.

    Raises:
        BadConfiguration: it is none of the supported ones.
    """
    return _Compiler().compile(annotation)


class _Compiler:
    """Compiles one annotation with everything that it refers to; a type that refers to itself is compiled once."""

    def __init__(self) -> None:
        self._objects: dict[type, Converter] = {}

    def compile(self, annotation: Any) -> Converter:
        if annotation in (Any, object):
            return _as_it_is
        if annotation is None or annotation in _SCALARS:
            return _scalar(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation is list or origin is list:
            return self._list(*arguments)
        if annotation is dict or origin is dict:
            return self._dict(annotation, *arguments)
        if origin in (Union, types.UnionType):
            return self._union(annotation, [self.compile(member) for member in arguments])
        if origin is Literal:
            return _one_of({(type(value), value): value for value in arguments})
        if isinstance(annotation, type):
            return self._class(annotation)
        raise _unsupported(annotation)

    def _list(self, item: Any = Any) -> Converter:
        convert = self.compile(item)

        def convert_list(value: Any, where: str) -> Any:
            if type(value) is not list:
                raise _mismatch(value, where, "a list")
            return [convert(element, f"{where}[{index}]") for index, element in enumerate(value)]

        return convert_list

    def _dict(self, annotation: Any, key: Any = str, item: Any = Any) -> Converter:
        if key is not str:
            raise _unsupported(annotation)
        convert = self.compile(item)

        def convert_dict(value: Any, where: str) -> Any:
            if type(value) is not dict:
                raise _mismatch(value, where, "an object")
            return {name: convert(element, f"{where}.{name}") for name, element in value.items()}

        return convert_dict

    def _union(self, annotation: Any, members: list[Converter]) -> Converter:
        def convert_union(value: Any, where: str) -> Any:
            for convert in members:
                try:
                    return convert(value, where)
                except PayloadMismatch:
                    continue
            raise _mismatch(value, where, _name(annotation))

        return convert_union

    def _class(self, annotation: type) -> Converter:
        if issubclass(annotation, Enum):
            return _one_of({(type(member.value), member.value): member for member in annotation})
        if annotation not in self._objects:
            # A type that contains itself finds this while it is being compiled.
            self._objects[annotation] = self._later(annotation)
            if dataclasses.is_dataclass(annotation):
                self._objects[annotation] = self._dataclass(annotation)
            elif typing.is_typeddict(annotation):
                self._objects[annotation] = self._typed_dict(annotation)
            else:
                raise _unsupported(annotation)
        return self._objects[annotation]

    def _later(self, annotation: type) -> Converter:
        def convert_later(value: Any, where: str) -> Any:
            return self._objects[annotation](value, where)

        return convert_later

    def _dataclass(self, annotation: Any) -> Converter:
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        required = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
        names = {field.name for field in fields}
        converters = {name: convert for name, convert in self._members(annotation).items() if name in names}

        def convert_dataclass(value: Any, where: str) -> Any:
            return annotation(**_known(value, where, converters, required))

        return convert_dataclass

    def _typed_dict(self, annotation: Any) -> Converter:
        converters = self._members(annotation)
        # Where annotations are strings (`from __future__ import annotations`), Python itself overlooks NotRequired and Required.
        marks = {name: typing.get_origin(hint) for name, hint in typing.get_type_hints(annotation, include_extras=True).items()}
        required = {name for name in annotation.__required_keys__ if marks[name] is not typing.NotRequired}
        required |= {name for name, mark in marks.items() if mark is typing.Required}

        def convert_typed_dict(value: Any, where: str) -> Any:
            known = _known(value, where, converters, required)
            return {**value, **known}

        return convert_typed_dict

    def _members(self, annotation: type) -> dict[str, Converter]:
        return {name: self.compile(member) for name, member in resolved_hints(annotation).items()}


def resolved_hints(annotated: Any) -> dict[str, Any]:
    """The annotations of a function or class, with names looked up.

    Raises:
        BadConfiguration: a name cannot be looked up.
    """
    try:
        return typing.get_type_hints(annotated)
    except NameError as error:
        name = getattr(annotated, "__qualname__", annotated)
        raise BadConfiguration(f"an annotation of {name} cannot be resolved: {error}; define the type at the top of its module") from None


_SCALARS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    str: "a string",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _as_it_is(value: Any, where: str) -> Any:
    return value


def _scalar(annotation: Any) -> Converter:
    wanted = type(None) if annotation is None else annotation

    def convert_scalar(value: Any, where: str) -> Any:
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:  # JSON may have any number of digits
                raise _mismatch(value, where, "a number below 1.8e308") from None
        raise _mismatch(value, where, _SCALARS[wanted])

    return convert_scalar


def _one_of(choices: Mapping[tuple[type, Any], Any]) -> Converter:
    described = "one of " + ", ".join(json.dumps(value) for _, value in choices)

    def convert_choice(value: Any, where: str) -> Any:
        try:
            return choices[type(value), value]
        except (KeyError, TypeError):
            raise _mismatch(value, where, described) from None

    return convert_choice


def _known(value: Any, where: str, converters: Mapping[str, Converter], required: set[str]) -> dict[str, Any]:
    if type(value) is not dict:
        raise _mismatch(value, where, "an object")
    if missing := required.difference(value):
        raise PayloadMismatch(f"{where} lacks {', '.join(sorted(missing))}")
    return {name: convert(value[name], f"{where}.{name}") for name, convert in converters.items() if name in value}


def _mismatch(value: Any, where: str, wanted: str) -> PayloadMismatch:
    text = json.dumps(value)
    return PayloadMismatch(f"{where} must be {wanted}, not {text if len(text) <= 80 else text[:80] + '…'}")


def _unsupported(annotation: Any) -> BadConfiguration:
    return BadConfiguration(
        f"a payload cannot be annotated {_name(annotation)}; use bytes, Any, None, bool, int, float, str, list[…], dict[str, …], unions, "
        "Literal, an Enum, a dataclass or a TypedDict"
    )


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
