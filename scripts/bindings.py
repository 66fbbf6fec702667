"""Write `muster/contracts/`: one typed Python module per contract, out of forge's artifacts.

A function becomes a Python function that returns a Call or a Transaction, an event and a struct a frozen dataclass, an
enum an IntEnum, several return values a NamedTuple, all with the documentation of the Solidity interface. What the ABI
cannot say (enum members, documentation, struct fields' notes) is taken from the compiler's syntax tree.

`write_bindings` is called by build_contracts.py; it raises ValueError on what Python could not tell apart.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_utils.abi import (
    event_abi_to_log_topic,
    function_abi_to_4byte_selector,
    get_abi_input_types,
    get_abi_output_types,
)

from muster.contracts.abi import CONTRACTS, snake

WIDTH = 120
CODEC = ["Address", "Call", "Event", "EventAbi", "Function", "Transaction"]


@dataclass(frozen=True)
class Notes:
    """What the source says of one thing."""

    text: str = ""
    params: dict[str, str] = field(default_factory=dict)
    """By the names that Solidity has."""


@dataclass
class Tree:
    """What the compiler's syntax trees hold of structs, enums and documentation."""

    notes: dict[str, Notes] = field(default_factory=dict)
    """By selector (functions, 8 digits), topic (events, 64 digits), or full name (structs, enums)."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """Of enums, by full name, e.g. IRegistry.Role."""


def write_bindings(artifacts: Path, target: Path) -> list[str]:
    """Write one module per contract, and return their names. `artifacts` is forge's output folder."""
    tree = read_trees(artifacts)
    abis = {module: json.loads(_artifact(artifacts, name).read_text())["abi"] for module, name in CONTRACTS.items()}
    homes = _homes(abis, tree)
    target.mkdir(parents=True, exist_ok=True)
    for module, abi in abis.items():
        text = Module(module, abi, tree, homes).text()
        temporary = target / f".{module}.py"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target / f"{module}.py")
    return list(abis)


def _artifact(artifacts: Path, name: str) -> Path:
    return artifacts / f"{name}.sol" / f"{name}.json"


# Reading the syntax trees


def read_trees(artifacts: Path) -> Tree:
    """Read all that our own sources and OpenZeppelin's say in their documentation comments."""
    tree = Tree()
    for path in sorted(artifacts.glob("*.sol/*.json")):
        if path.name.endswith(".tests.json"):  # what tests compiled beside it, perhaps of an older source
            continue
        source = json.loads(path.read_text()).get("ast", {})
        if source.get("absolutePath", "").startswith("tests/"):
            continue
        for contract in (node for node in source.get("nodes", ()) if node["nodeType"] == "ContractDefinition"):
            for node in contract["nodes"]:
                _read(node, contract["name"], tree)
    return tree


def _read(node: dict[str, Any], contract: str, tree: Tree) -> None:
    kind = node["nodeType"]
    name = f"{contract}.{node.get('name', '')}"
    if kind == "EnumDefinition":
        tree.members[name] = [member["name"] for member in node["members"]]
    key = node.get("functionSelector") or node.get("eventSelector") or name
    documentation = node.get("documentation")
    if kind in {"EnumDefinition", "StructDefinition", "EventDefinition", "FunctionDefinition", "VariableDeclaration"}:
        notes = _notes(documentation["text"] if documentation else "")
        if notes.text or notes.params:
            tree.notes.setdefault(key, notes)


def _notes(text: str) -> Notes:
    """Split NatSpec into prose and a note per parameter; `@inheritdoc` and what is for the compiler is left out."""
    tags = re.split(r"(?m)^\s*@(\w+)[ \t]*", "\n" + text)
    prose = [tags[0]]
    params: dict[str, str] = {}
    for tag, body in zip(tags[1::2], tags[2::2], strict=True):
        flat = " ".join(body.split())
        if tag in {"notice", "dev", "title"}:
            prose.append(flat)
        elif tag == "return":
            prose.append(f"Returns {flat[0].lower()}{flat[1:]}" if flat else "")
        elif tag == "param":
            name, _, note = flat.partition(" ")
            params[name] = note
    return Notes("\n\n".join(" ".join(part.split()) for part in prose if part.strip()), params)


def _homes(abis: dict[str, list[dict[str, Any]]], tree: Tree) -> dict[str, str]:
    """Return the module of each struct and enum: its interface's, or for a library's where it is first used."""
    interfaces = {f"I{contract}": module for module, contract in CONTRACTS.items()}
    homes: dict[str, str] = {}
    for module, abi in abis.items():
        for name in (_named(part) for item in abi for part in _parts(item)):
            if name is not None:
                owner = interfaces.get(name.split(".")[0])
                homes.setdefault(name, owner or module)
    for name in tree.members:
        if name.split(".")[0] in interfaces:
            homes.setdefault(name, interfaces[name.split(".")[0]])
    return homes


def _parts(item: Any) -> Iterator[dict[str, Any]]:
    """Return every parameter and struct member of an ABI entry, the outer ones first."""
    for part in [*item.get("inputs", ()), *item.get("outputs", ()), *item.get("components", ())]:
        yield part
        yield from _parts({"components": part.get("components", ())})


def _named(part: dict[str, Any]) -> str | None:
    """Full name of the struct or enum that a parameter is of (or a list of), if it is one."""
    word, _, name = part.get("internalType", "").partition(" ")
    return name.removesuffix("[]") if word in {"struct", "enum"} else None


# Writing a module


class Module:
    """One contract's module in the making."""

    def __init__(self, module: str, abi: list[dict[str, Any]], tree: Tree, homes: dict[str, str]) -> None:
        self.module = module
        self.contract = CONTRACTS[module]
        self.abi = abi
        self.tree = tree
        self.homes = homes
        self.borrowed: dict[str, set[str]] = {}
        """Names imported from the other modules, by module."""
        self.taken: dict[str, str] = {}
        """What each top-level name of the module stands for."""

    def text(self) -> str:
        functions = sorted(self._items("function"), key=lambda item: item["name"])
        events = sorted(self._items("event"), key=lambda item: item["name"])
        structs = self._structs()
        sections = [
            ("Enums", [self._enum(name) for name in sorted(self._own(self.tree.members))]),
            ("Structs", [self._struct(name, components) for name, components in structs.items()]),
            ("Several values returned", [self._answer(item) for item in functions if len(item["outputs"]) > 1]),
            ("Events", [self._event(item) for item in events]),
            ("Views", [self._function(item) for item in functions if _is_view(item)]),
            ("Acts", [self._function(item) for item in functions if not _is_view(item)]),
        ]
        body = "\n\n\n".join(
            block for title, blocks in sections if blocks for block in [f"# {title}", "\n\n\n".join(blocks)]
        )
        names = [name for name in self.taken if name[0].isupper() and name in {item["name"] for item in events}]
        listed = "".join(f"    {name},\n" for name in names)
        table = f"EVENTS: tuple[type[Event], ...] = (\n{listed})\n"
        return "\n".join([self._head(body), body, "\n", table])

    def _head(self, body: str) -> str:
        used = [name for name in CODEC if re.search(rf"\b{name}\b", body) or name == "Event"]
        lines = [
            f'"""{self.contract} as its ABI and interface have it. Generated by scripts/bindings.py: edit those."""',
            "",
            "from __future__ import annotations",
            "",
        ]
        standard = [("dataclasses", "dataclass"), ("enum", "IntEnum"), ("typing", "NamedTuple")]
        lines += [f"from {home} import {name}" for home, name in standard if name in body]
        lines += ["", f"from muster.contracts.codec import {', '.join(used)}"]
        lines += [
            f"from muster.contracts.{home} import {', '.join(sorted(names))}"
            for home, names in sorted(self.borrowed.items())
        ]
        return "\n".join([*lines, "\n"])

    # What the contract has

    def _items(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.abi if item["type"] == kind]

    def _own(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.homes.get(name) == self.module]

    def _structs(self) -> dict[str, list[dict[str, Any]]]:
        """Our structs with their members."""
        found: dict[str, list[dict[str, Any]]] = {}
        for part in (part for item in self.abi for part in _parts(item) if part.get("components")):
            name = _named(part)
            if name is None:
                raise ValueError(f"{self.contract}: a tuple without a name, {part}")
            if self.homes[name] == self.module:
                found.setdefault(name, part["components"])
        return dict(sorted(found.items()))

    # Pieces of text

    def _enum(self, name: str) -> str:
        title = self._take(name.split(".")[1], name)
        notes = self.tree.notes.get(name, Notes())
        members = "\n".join(f"    {snake(m).upper()} = {i}" for i, m in enumerate(self.tree.members[name]))
        return f"class {title}(IntEnum):\n{_docstring(notes.text or title, 4)}\n{members}"

    def _struct(self, name: str, components: list[dict[str, Any]]) -> str:
        title = self._take(name.split(".")[1], name)
        notes = self.tree.notes.get(name, Notes())
        text = _docstring(notes.text or f"`{name}`.", 4)
        return f"@dataclass(frozen=True)\nclass {title}:\n{text}{self._fields(components, notes)}"

    def _answer(self, item: Any) -> str:
        title = self._take(_answer_name(item), item["name"])
        notes = self.tree.notes.get(function_abi_to_4byte_selector(item).hex(), Notes())
        text = f"What `{snake(item['name'])}` answers."
        return f"class {title}(NamedTuple):\n{_docstring(text, 4)}{self._fields(item['outputs'], notes)}"

    def _event(self, item: Any) -> str:
        name, key = item["name"], event_abi_to_log_topic(item).hex()
        notes = self.tree.notes.get(key, Notes())
        indexed = [part for part in item["inputs"] if part["indexed"]]
        plain = [part for part in item["inputs"] if not part["indexed"]]
        if any(_python_type(part["type"]) is None for part in indexed):
            raise ValueError(f"{self.contract}.{name}: an indexed field is only a hash in the log")
        arguments = [f'"{self.module}"', f'bytes.fromhex("{key}")', _pairs(indexed), _pairs(plain)]
        return (
            f"@dataclass(frozen=True)\nclass {self._take(name, name)}(Event):\n"
            f"{_docstring(notes.text or f'`{self.contract}.{name}`.', 4)}\n"
            f"{_call('ABI = EventAbi', arguments, 4)}{self._fields(item['inputs'], notes)}"
        )

    def _fields(self, parts: list[dict[str, Any]], notes: Notes) -> str:
        lines: list[str] = []
        for i, part in enumerate(parts):
            lines.append(f"    {snake(part['name']) or f'value_{i}'}: {self._type(part)}")
            note = notes.params.get(part["name"])
            lines += [_docstring(note, 4)[:-1]] if note else []
        return "".join(f"\n{line}" for line in lines)

    def _function(self, item: Any) -> str:
        name = self._take(snake(item["name"]), item["name"])
        notes = self.tree.notes.get(function_abi_to_4byte_selector(item).hex(), Notes())
        parameters = [(snake(part["name"]) or f"value_{i}", part) for i, part in enumerate(item["inputs"])]
        result = self._result(item)
        kind = "Call" if _is_view(item) else "Transaction"
        constant = f"_{name.upper()}"
        listed = [f"{parameter}: {self._type(part)}" for parameter, part in parameters]
        parameter_notes = "".join(
            f"\n{parameter}: {notes.params[part['name']]}"
            for parameter, part in parameters
            if part["name"] in notes.params
        )
        passed = _tuple(parameter for parameter, _ in parameters)
        label = f"{self.contract}.{item['name']}"
        text = notes.text or f"`{label}`."
        arguments = [f'"{self.module}"', f'"{label}"', f'bytes.fromhex("{function_abi_to_4byte_selector(item).hex()}")']
        arguments += [_texts(get_abi_input_types(item)), _texts(get_abi_output_types(item)), result]
        return (
            f"{_call(f'{constant} = Function', arguments, 0)}\n\n\n"
            f"{_header(name, listed, f'{kind}[{result}]')}\n"
            f"{_docstring(text + (chr(10) + parameter_notes if parameter_notes else ''), 4)}"
            f"    return {kind}({constant}, {passed})"
        )

    def _result(self, item: Any) -> str:
        if len(item["outputs"]) > 1:
            return _answer_name(item)
        return self._type(item["outputs"][0]) if item["outputs"] else "None"

    def _type(self, part: dict[str, Any]) -> str:
        """Return the Python type of a parameter, as it is written."""
        if part["type"].endswith("[]"):
            inner = {**part, "type": part["type"].removesuffix("[]")}
            inner["internalType"] = part.get("internalType", "").removesuffix("[]")
            return f"list[{self._type(inner)}]"
        name = _named(part)
        if name is None:
            return _python_type(part["type"]) or "str"
        home, title = self.homes[name], name.split(".")[1]
        if home != self.module:
            self.borrowed.setdefault(home, set()).add(title)
        return title

    def _take(self, name: str, what: str) -> str:
        """Take a top-level name of the module for a thing of the contract."""
        if name in self.taken:
            raise ValueError(f"{self.contract}: {self.taken[name]} and {what} are both {name} in Python")
        self.taken[name] = what
        return name


def _is_view(item: Any) -> bool:
    return item["stateMutability"] in {"view", "pure"}


def _answer_name(item: Any) -> str:
    return item["name"][0].upper() + item["name"][1:]


def _python_type(type_: str) -> str | None:
    """Return the Python type of an elementary Solidity type that fits a word; None for text."""
    if type_ == "address":
        return "Address"
    if type_ == "bool":
        return "bool"
    if type_.startswith(("uint", "int")):
        return "int"
    return "bytes" if type_.startswith("bytes") else None


def _texts(items: Iterable[str]) -> str:
    return _tuple(json.dumps(item) for item in items)


def _pairs(parts: list[dict[str, Any]]) -> str:
    return _tuple(f'("{snake(part["name"])}", {json.dumps(part["type"])})' for part in parts)


def _tuple(items: Iterable[str]) -> str:
    listed = list(items)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def _call(name: str, arguments: list[str], indent: int) -> str:
    """Format a call on one line, or with an argument to a line where that would be too long."""
    space = " " * indent
    line = f"{space}{name}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{space}{name}(", *(f"{space}    {argument}," for argument in arguments), f"{space})"])


def _header(name: str, parameters: list[str], result: str) -> str:
    """Format a function's first line, or several where that would be too long."""
    line = f"def {name}({', '.join(parameters)}) -> {result}:"
    if len(line) <= WIDTH:
        return line
    listed = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{listed}) -> {result}:"


def _docstring(text: str, indent: int) -> str:
    """Format a docstring, wrapped, ended by a newline; nothing for no text."""
    if not text:
        return ""
    space = " " * indent
    room = WIDTH - indent - 6
    lines: list[str] = []
    for paragraph in text.replace("\\", "\\\\").split("\n"):
        lines += textwrap.wrap(paragraph, room) or [""]
    if len(lines) == 1:
        return f'{space}"""{lines[0]}"""\n'
    return "\n".join([f'{space}"""{lines[0]}', *(f"{space}{line}".rstrip() for line in lines[1:]), f'{space}"""\n'])
